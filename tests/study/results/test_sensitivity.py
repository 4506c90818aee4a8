"""What a grid of learning rates says of an arm."""

from __future__ import annotations

import json
import math

import pytest

from gatelm.config import ConfigError
from gatelm.study.planning.derived import LR_METRICS
from gatelm.study.results.collect import collect
from gatelm.study.results.sensitivity import sensitivity

INF = math.inf


def test_by_hand():
    found = sensitivity({1e-3: 4.0, 1e-2: 3.0, 1e-1: INF}, 7.0)
    assert found == {
        "lr_sensitivity": pytest.approx((4 + 3 + 7) / 3 - 3),
        "largest_stable_lr": 1e-2,
        "best_lr": 1e-2,
        "best_lr_loss": 3.0,
    }


def test_a_loss_above_the_start_is_divergence_and_ends_stability():
    found = sensitivity({1e-1: 4.0, 1e-2: 9.0, 1e-3: 5.0}, 7.0)
    assert found["largest_stable_lr"] == 1e-3
    assert found["best_lr"] == 1e-1
    assert found["lr_sensitivity"] == pytest.approx((4 + 7 + 5) / 3 - 4)


def test_everything_diverged():
    found = sensitivity({1e-3: INF, 1e-2: math.nan}, 7.0)
    assert found == {
        "lr_sensitivity": 0.0,
        "largest_stable_lr": None,
        "best_lr": None,
        "best_lr_loss": None,
    }


@pytest.fixture
def plan(make_plan):
    base = make_plan().runs[0].config.tree()
    del base["optim"]["lr"]
    base["train"]["eval_every_steps"] = 3
    return make_plan(
        base=base,
        arms={"none": {}, "wide": {"optim.weight_decay": 0.3}},
        axes={"optim.lr": [0.01, 0.1, 1.0]},
        metrics=["val_loss", *LR_METRICS],
    )


def write(root, run, loss, status="finished"):
    folder = root / run.folder
    folder.mkdir(parents=True)
    record = {"kind": "eval", "step": 0, "val_loss": 8.0}
    (folder / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    metrics = {} if status == "diverged" else {"val_loss": loss}
    result = {"config_hash": run.config_hash, "status": status, "metrics": metrics}
    (folder / "result.json").write_text(json.dumps(result))


def test_one_number_a_seed_compared_between_arms(plan, tmp_path):
    for run in plan.runs:
        lr = run.axes["optim.lr"]
        breaks = lr == 1.0 and run.arm == "none"
        write(tmp_path, run, 4.0 + run.seed / 8 + lr, "diverged" if breaks else "finished")
    results = collect(plan, tmp_path)
    rows = {(r.arm, r.metric): r for r in results.summaries if r.metric in LR_METRICS}
    assert all(row.axes == {} and row.n == 2 for row in rows.values())
    assert rows["none", "largest_stable_lr"].mean == 0.1
    assert rows["wide", "largest_stable_lr"].mean == 1.0
    compared = {c.metric: c for c in results.comparisons if c.axes == {}}
    assert set(compared) == set(LR_METRICS)
    assert compared["largest_stable_lr"].verdict == "higher"
    assert compared["best_lr_loss"].verdict == "no difference"
    # the grid's mean has 8 in place of what the stable arm reaches at the largest rate
    seeds = [(8 - (4 + s / 8 + 1)) / 3 for s in (0, 1)]
    assert compared["lr_sensitivity"].difference == pytest.approx(-sum(seeds) / 2)
    lost = [s for s in results.summaries if s.metric == "val_loss" and s.diverged]
    assert [(s.arm, s.axes, s.diverged) for s in lost] == [("none", {"optim.lr": 1.0}, 2)]


def test_a_grid_that_is_not_done_gives_no_number(plan, tmp_path):
    for run in plan.runs[1:]:
        write(tmp_path, run, 4.0)
    rows = {(r.arm, r.metric): r.n for r in collect(plan, tmp_path).summaries}
    assert rows["none", "lr_sensitivity"] == 1
    assert rows["wide", "lr_sensitivity"] == 2


def test_an_axis_of_learning_rates_is_needed(make_plan):
    with pytest.raises(ConfigError, match=r"lr_sensitivity is taken over learning rates; add the"):
        make_plan(metrics=["lr_sensitivity"])
