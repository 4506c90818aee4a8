"""Planned time: from a few timed steps, then from finished runs."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from gatelm.study.planning import estimate as estimate_module
from gatelm.study.planning.estimate import START_SECONDS, estimate
from gatelm.study.planning.plan_table import forecast, plan_json, plan_table
from gatelm.study.planning.vocabulary import sized
from gatelm.study.results.numbers import si
from gatelm.study.running.resources import Resources
from gatelm.train.speed import TrainingSpeed, run_flops


def finish(root, run, seconds):
    folder = root / run.folder
    folder.mkdir(parents=True)
    result = {"status": "finished", "config_hash": run.config_hash, "seconds": seconds}
    (folder / "result.json").write_text(json.dumps(result))


@pytest.fixture
def asked(monkeypatch):
    """What speeds were asked for; every run computes a billion FLOPs a second."""
    calls = []

    def speed(cfg, model, **options):
        calls.append((cfg.train.precision, options))
        return TrainingSpeed(1e9, measured=True)

    monkeypatch.setattr(estimate_module, "training_speed", speed)
    return calls


def test_without_a_finished_run_steps_are_timed(make_plan, tmp_path, asked):
    plan = make_plan()
    times = estimate(plan, tmp_path, Resources(workers=2, threads=3))
    run = plan.runs[0]
    assert asked == [("fp32", {"threads": 1, "processes": 2})]  # the threads that the run states
    assert times.basis == "timed steps"
    needed = run_flops(run.config, sized(run.config)) / 1e9
    assert needed < times.seconds[run] < needed + 1
    work = sum(times.seconds.values())
    assert times.wall_seconds == pytest.approx(work / 2 + START_SECONDS)


def test_finished_runs_give_the_speed_and_are_not_counted(make_plan, tmp_path, asked):
    plan = make_plan()
    finish(tmp_path, plan.runs[0], 10.0)
    times = estimate(plan, tmp_path, Resources(workers=8, threads=1))
    assert times.basis == "finished runs"
    assert not asked
    assert list(times.seconds) == list(plan.runs[1:])
    run = plan.runs[1]
    needed = 10.0 * run_flops(run.config, sized(run.config)) / run.flops
    assert needed < times.seconds[run] < needed + 1


def test_nothing_left_takes_no_time(make_plan, tmp_path, asked):
    plan = make_plan()
    for run in plan.runs:
        finish(tmp_path, run, 10.0)
    times = estimate(plan, tmp_path, Resources(2, 1))
    assert (times.wall_seconds, times.seconds) == (0.0, {})


def test_table_and_json(make_plan, tmp_path, asked):
    plan = make_plan(axes={"optim.weight_decay": [0.0, 0.1]})
    finish(tmp_path, plan.runs[0], 10.0)
    times = estimate(plan, tmp_path, Resources(1, 1))
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(plan_table(plan, tmp_path, times, Resources(1, 1)))
    text = console.export_text()
    assert "none,weight_decay=0.0" in text
    assert "1/2" in text
    assert "trained in fp32" in text
    assert "7 of 8 runs to train" in text
    assert "with 1 at a time, 1 CPU threads each, about" in text
    assert "an estimate from the throughput of finished runs" in text
    assert "training in fp32, about" in forecast(plan, times)
    tree = plan_json(plan, tmp_path, times)
    json.dumps(tree, allow_nan=False)
    assert [r["status"] for r in tree["runs"]] == ["finished"] + ["unfinished"] * 7
    assert tree["runs"][0]["estimated_seconds"] is None
    assert {r["precision"] for r in tree["runs"]} == {"fp32"}


def test_short_numbers():
    assert [si(v) for v in (12, 1500, 2.5e6, 1.72e9, 3e15)] == [
        "12",
        "1.5k",
        "2.5M",
        "1.72G",
        "3P",
    ]


def test_a_speed_that_is_named(make_plan, tmp_path, asked):
    plan = make_plan()
    times = estimate(plan, tmp_path, Resources(2, 1), flops_per_second=1e3)
    assert (times.basis, asked) == ("given", [])
    for run in plan.runs:
        needed = run_flops(run.config, sized(run.config)) / 1e3
        assert times.seconds[run] == pytest.approx(needed, rel=0.01)
