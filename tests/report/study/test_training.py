import pytest

from gatelm.report.study.training import _domain, smooth, thin


def test_smoothing_is_unbiased_at_the_start() -> None:
    assert smooth([2.0, 2.0, 2.0]) == pytest.approx([2.0, 2.0, 2.0])
    # Weights 0.1 and 0.09 of the second and first value, normalised.
    assert smooth([1.0, 2.0])[1] == pytest.approx((0.09 * 1 + 0.1 * 2) / 0.19)


@pytest.mark.parametrize("length", [1, 159, 160, 161, 1000, 12345])
def test_thinning_keeps_both_ends(length: int) -> None:
    kept = thin([(i,) for i in range(length)])
    assert kept[0] == (0,)
    assert kept[-1] == (length - 1,)
    assert len(kept) <= 161


def test_the_range_shown_ignores_the_first_steps_and_diverged_runs() -> None:
    calm = [{"label": "a", "seed": 0, "x": x, "y": 10.0 - x if x < 5 else 4.0} for x in range(11)]
    wild = [{"label": "b", "seed": 0, "x": x, "y": 1e6} for x in range(3)]
    wild[-1]["end"] = "diverged"
    domain = _domain(calm + wild)
    assert domain is not None
    low, high = domain
    assert 3.5 < low < 4.0
    assert 8.0 < high < 9.0
