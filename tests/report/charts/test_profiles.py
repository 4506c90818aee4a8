import pytest

from gatelm.report.charts import axes, intervals, profiles
from gatelm.report.charts.theme import Palette

PALETTE = Palette.of_arms(["none", "gate"], ["none"])
RUNS = [{"arm": a, "label": a, "seed": s} for a in ("none", "gate") for s in (0, 1)]


def test_curves_show_a_run_that_broke_off() -> None:
    rows = [{**run, "x": x, "y": 3.0 - x / 10} for run in RUNS for x in range(3)]
    whole = profiles.curves(rows, PALETTE, title="t", x_title="step", y_title="loss").to_dict()
    rows[-1]["end"] = "diverged"
    broken = profiles.curves(rows, PALETTE, title="t", x_title="step", y_title="loss").to_dict()
    assert len(broken["layer"]) == len(whole["layer"]) + 1
    assert broken["layer"][-1]["mark"]["shape"] == "cross"


def test_every_chart_takes_the_width_of_its_container() -> None:
    values = [{**run, "value": 0.5, "mark": "trigger", "place": "0"} for run in RUNS]
    means = [{"arm": "none", "label": "none", "mean": 0.5, "low": None, "high": None, "n": 1}]
    gaps = [{"arm": "gate", "label": "gate", "difference": 0.1, "low": None, "high": None, "n": 1}]
    bins = [{"place": "0", "low": 0.0, "high": 0.5, "share": 1.0}]
    for chart in (
        intervals.seeds_and_means(values, means, PALETTE, title="t", x_title="x"),
        intervals.differences(gaps, PALETTE, title="t", x_title="x"),
        intervals.marked(values, PALETTE, title="t", x_title="x", reference=0.1),
        profiles.layer_profile(values, PALETTE, title="t", x_title="x", y_title="y"),
        profiles.ridges(bins, color="#000000", title="t", x_title="x"),
    ):
        assert chart.to_dict()["width"] == "container"


@pytest.mark.parametrize("domain", [(3.5, 70.0), (0.98, 1.4), (0.7, 9.1), (1.0, 24000.0)])
def test_logarithmic_axes_have_a_few_round_ticks(domain: tuple[float, float]) -> None:
    rows = [{**RUNS[0], "place": str(i), "value": v} for i, v in enumerate(domain)]
    spec = profiles.layer_profile(
        rows, PALETTE, title="t", x_title="x", y_title="y", y_scale="log", y_domain=domain
    ).to_dict()
    ticks = spec["layer"][0]["encoding"]["y"]["axis"]["values"]
    assert 2 <= len(ticks) <= 9
    assert all(domain[0] <= tick <= domain[1] for tick in ticks)


def test_ridges_scale_each_layer_to_its_own_peak() -> None:
    rows = [
        {"place": place, "low": i / 2, "high": i / 2 + 0.5, "share": share}
        for place, shares in (("0", (0.2, 0.8)), ("1", (0.5, 0.5)))
        for i, share in enumerate(shares)
    ]
    spec = profiles.ridges(rows, color="#000000", title="t", x_title="x").to_dict()
    (drawn,) = spec["datasets"].values()
    tops = [(row["floor"], round(row["top"] - row["floor"], 3)) for row in drawn]
    assert tops == [(1, 0.22), (1, 0.88), (0, 0.88), (0, 0.88)]


def test_long_axis_titles_are_wrapped() -> None:
    lines = axes.wrapped("difference in validation loss (nats per token); lower is better")
    assert len(lines) == 2
    assert max(map(len, lines)) <= 38


@pytest.mark.parametrize(
    ("places", "kind"), [((2, 4, 8, 16), "log"), ((1, 2, 3), "linear"), ((0.5,), "linear")]
)
def test_intervals_of_arms_stand_beside_each_other_around_their_setting(places, kind) -> None:
    rows = [
        {"arm": arm, "x": x, "mean": 1.0, "low": 0.5, "high": 1.5, "n": 3}
        for arm in ("none", "gate")
        for x in places
    ]
    spec = intervals.along_axis(rows, PALETTE, title="t", x_title="x", y_title="y").to_dict()
    x = spec["layer"][0]["encoding"]["x"]
    assert x["scale"]["type"] == kind
    assert x["axis"]["values"] == list(places)
    shared = spec["layer"][0].get("data") or spec["data"]
    drawn = shared["values"] if "values" in shared else spec["datasets"][shared["name"]]
    at = {(row["arm"], row["x"]): row["at"] for row in drawn}
    for place in places:
        if len(places) > 1:
            assert at["none", place] < place < at["gate", place]
        assert at["none", place] == pytest.approx(place, rel=0.05)
