"""Steps and seconds to the loss at which the baseline ends."""

from __future__ import annotations

import json

import pytest

from gatelm.config import ConfigError
from gatelm.study.results.collect import collect, to_csv
from gatelm.study.results.speed import first_step_at, interpolate

METRICS = ["val_loss", "steps_to_baseline_loss", "seconds_to_baseline_loss"]


@pytest.mark.parametrize(
    ("losses", "step"),
    [
        ([(0, 5.0), (10, 3.0), (20, 2.0)], 15.0),
        ([(0, 5.0), (10, 2.5), (20, 2.0)], 10.0),
        ([(0, 2.0), (10, 1.0)], 0.0),
        ([(0, 5.0), (10, 2.0), (20, 3.0), (30, 1.0)], 10 * 2.5 / 3),
        ([(0, 5.0), (10, 2.6)], None),
    ],
)
def test_first_step_at(losses, step):
    assert first_step_at(losses, 2.5) == (None if step is None else pytest.approx(step))


@pytest.mark.parametrize(("x", "y"), [(0, 0.0), (5, 1.0), (10, 2.0), (15, 4.0), (30, 10.0)])
def test_interpolate(x, y):
    assert interpolate([(0, 0.0), (10, 2.0), (20, 6.0)], x) == pytest.approx(y)


@pytest.fixture
def plan_with_curves(make_plan, tmp_path):
    """Arms that are twice as fast, as fast, and never there; one second is two steps."""
    base = {"train": {"total_steps": 20, "batch_size": 2, "eval_every_steps": 10}}
    plan = make_plan(
        base={**make_plan().runs[0].config.tree(), **base},
        arms={"none": {}, "fast": {"optim.lr": 0.1}, "slow": {"optim.lr": 0.2}},
        metrics=[*METRICS, "reached_baseline_loss"],
    )
    ends = {"none": 4.0, "fast": 2.0, "slow": 4.5}
    for run in plan.runs:
        end, folder = ends[run.arm] + run.seed, tmp_path / run.folder
        folder.mkdir(parents=True)
        lines = [{"kind": "eval", "step": 0, "val_loss": 6.0 + run.seed}]
        lines += [
            {"kind": "train", "step": 10, "loss": 1.0, "seconds": 5.0},
            {"kind": "eval", "step": 10, "val_loss": (6.0 + run.seed + end) / 2},
            {"kind": "train", "step": 20, "loss": 1.0, "seconds": 10.0},
            {"kind": "eval", "step": 20, "val_loss": end},
        ]
        if run.seed == 0:
            lines.insert(0, {"kind": "event", "step": 0, "what": "other"})
        (folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
        result = {
            "config_hash": run.config_hash,
            "status": "finished",
            "metrics": {"val_loss": end},
        }
        (folder / "result.json").write_text(json.dumps(result))
    return plan


def test_results_know_steps_seconds_and_who_never_got_there(plan_with_curves, tmp_path):
    results = collect(plan_with_curves, tmp_path)
    found = {(r.arm, r.seed): r.metrics for r in results.runs}
    for seed in (0, 1):
        assert found["none", seed]["steps_to_baseline_loss"] == 20
        assert found["fast", seed]["steps_to_baseline_loss"] == pytest.approx(10)
        assert found["fast", seed]["seconds_to_baseline_loss"] == pytest.approx(5)
        assert found["slow", seed]["steps_to_baseline_loss"] == 20
        assert [found[arm, seed]["reached_baseline_loss"] for arm in ("fast", "slow")] == [1, 0]
    compared = {c.arm: c for c in results.comparisons if c.metric == METRICS[1]}
    assert compared["fast"].difference == pytest.approx(-10)
    assert compared["fast"].verdict == "lower"


def test_seconds_stay_out_of_the_csv(plan_with_curves, tmp_path):
    header = to_csv(collect(plan_with_curves, tmp_path)).splitlines()[0]
    assert "steps_to_baseline_loss" in header
    assert "seconds" not in header


def test_validations_are_needed(make_plan):
    with pytest.raises(ConfigError, match=r"needs validations .* set base.train.eval_every_steps"):
        make_plan(metrics=METRICS)
