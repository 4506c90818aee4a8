import pytest

from gatelm.report.sections import share_top
from gatelm.report.study.attention import average, mean_share


def test_average_over_seeds_by_layer_and_head() -> None:
    assert average([[[0.2, 0.4], [0.6, 0.8]], [[0.4, 0.0], [0.2, 0.8]]]) == [
        [0.30000000000000004, 0.2],
        [0.4, 0.8],
    ]


def test_matrices_of_another_shape_are_left_out_and_holes_kept() -> None:
    assert average([[[0.5]], [[0.1, 0.2]], None, [[None]], []]) == [[0.5]]
    assert average([[[None, 0.2]], [[None, 0.4]]]) == [[None, pytest.approx(0.3)]]
    assert average([None]) == []
    assert mean_share([[None, 0.2], [0.4, None]]) == pytest.approx(0.3)
    assert mean_share([[None]]) is None


def test_the_axis_of_small_shares_is_cut() -> None:
    assert share_top([0.02, 0.9], 0.06) == 1.0
    assert share_top([0.02], 0.06) == pytest.approx(0.069)
