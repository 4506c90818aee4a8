import pytest

from gatelm.report.charts.theme import Palette
from gatelm.report.load import RunRecord, StudyPart
from gatelm.report.study.longer import longer_figures
from gatelm.study.results.schema import PartEntry

PALETTE = Palette.of_arms(["none", "gated"], ["none"])


def part(metrics, **values):
    """Two arms of two seeds; `values` gives each metric's number by arm, plus 0.01 a seed."""
    runs = tuple(
        RunRecord(
            part="p",
            arm=arm,
            seed=seed,
            status="finished",
            metrics={name: by_arm[arm] + 0.01 * seed for name, by_arm in values.items()},
        )
        for arm in ("none", "gated")
        for seed in (0, 1)
    )
    return StudyPart("p", PartEntry(arms=("none", "gated"), metrics=tuple(metrics)), runs, (), ())


def test_a_figure_for_each_scaling_with_every_length_in_it():
    rise = {
        "val_loss_rise_at_2x_none": {"none": 0.1, "gated": 0.05},
        "val_loss_rise_at_16x_none": {"none": 0.9, "gated": 0.4},
        "val_loss_rise_at_2x_yarn": {"none": 0.0, "gated": 0.0},
    }
    asked = ["val_loss_rise_at_2x_none", "val_loss_rise_at_2x_yarn", "val_loss"]
    figures = longer_figures(part(asked, **rise), PALETTE)
    assert [figure.name for figure in figures] == [
        "p-val_loss_rise-none-by-length",
        "p-val_loss_rise-yarn-by-length",
    ]
    assert figures[0].title == "Rise of the loss beyond the training length: none"
    spec = figures[0].chart.to_dict()
    shared = spec["layer"][0].get("data") or spec["data"]
    rows = shared["values"] if "values" in shared else spec["datasets"][shared["name"]]
    assert [(row["arm"], row["x"]) for row in rows] == [
        ("none", 2),
        ("gated", 2),
        ("none", 16),
        ("gated", 16),
    ]
    assert rows[3]["mean"] == pytest.approx(0.405)
    assert rows[3]["low"] < 0.4 < rows[3]["high"]
    axis = " ".join(spec["layer"][0]["encoding"]["y"]["title"])
    assert axis == "Rise of the loss beyond the training length (nats per token)"


def test_recall_is_drawn_rather_than_the_loss_and_other_parts_have_nothing():
    values = {
        "accuracy_recall_at_4x_yarn": {"none": 0.5, "gated": 0.75},
        "val_loss_rise_at_4x_yarn": {"none": 0.5, "gated": 0.75},
    }
    figures = longer_figures(part(list(values), **values), PALETTE)
    assert [figure.name for figure in figures] == ["p-accuracy_recall-yarn-by-length"]
    assert longer_figures(part(["val_loss"], val_loss={"none": 1, "gated": 1}), PALETTE) == []
