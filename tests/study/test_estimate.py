"""Planned time: from a probe, then measured."""

from __future__ import annotations

import io
import json

import pytest
import torch
from rich.console import Console

from gatelm.study import estimate as estimate_module
from gatelm.study.estimate import UTILISATION, estimate, matmul_flops_per_second
from gatelm.study.plan_table import plan_json, plan_table, short_number
from gatelm.study.resources import Resources


def finish(root, run, seconds):
    folder = root / run.folder
    folder.mkdir(parents=True)
    result = {"status": "finished", "config_hash": run.config_hash, "seconds": seconds}
    (folder / "result.json").write_text(json.dumps(result))


def test_without_a_finished_run_the_rate_is_probed(make_plan, tmp_path, monkeypatch):
    asked = []

    def speed(*args):
        asked.append(args)
        return 1e9

    monkeypatch.setattr(estimate_module, "matmul_flops_per_second", speed)
    plan = make_plan()
    times = estimate(plan, tmp_path, Resources(workers=2, threads=3))
    one = plan.runs[0].flops / (UTILISATION * 1e9)
    assert set(asked) == {(plan.runs[0].config.train.precision, "cpu", 3)}
    assert times.basis == "probed"
    assert times.seconds[plan.runs[0]] == pytest.approx(one)
    assert times.wall_seconds == pytest.approx(4 * one / 2)


def test_the_probe_leaves_the_threads_alone():
    before = torch.get_num_threads()
    assert matmul_flops_per_second("fp32", "cpu", 1) > 1e6
    assert torch.get_num_threads() == before


def test_finished_runs_give_the_rate_and_are_not_counted(make_plan, tmp_path):
    plan = make_plan()
    finish(tmp_path, plan.runs[0], 10.0)
    times = estimate(plan, tmp_path, Resources(workers=8, threads=1))
    assert times.basis == "measured"
    assert list(times.seconds) == list(plan.runs[1:])
    assert times.wall_seconds == pytest.approx(10.0)


def test_table_and_json(make_plan, tmp_path):
    plan = make_plan(axes={"optim.weight_decay": [0.0, 0.1]})
    finish(tmp_path, plan.runs[0], 10.0)
    times = estimate(plan, tmp_path, Resources(1, 1))
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(plan_table(plan, tmp_path, times, Resources(1, 1)))
    text = console.export_text()
    assert "none,weight_decay=0.0" in text
    assert "1/2" in text
    assert "7 of 8 runs to train" in text
    assert (
        "with 1 at a time, 1 CPU threads each, about 1:10, an estimate from the throughput" in text
    )
    tree = plan_json(plan, tmp_path, times)
    json.dumps(tree, allow_nan=False)
    assert [r["status"] for r in tree["runs"]] == ["finished"] + ["unfinished"] * 7
    assert tree["runs"][0]["estimated_seconds"] is None


def test_short_numbers():
    assert [short_number(v) for v in (12, 1500, 2.5e6, 1.72e9, 3e15)] == [
        "12",
        "1.5k",
        "2.5M",
        "1.72G",
        "3P",
    ]


def test_a_speed_that_is_named(make_plan, tmp_path):
    plan = make_plan()
    times = estimate(plan, tmp_path, Resources(2, 1), flops_per_second=1e3)
    assert times.basis == "given"
    assert all(times.seconds[run] == run.flops / 1e3 for run in plan.runs)
    assert times.wall_seconds == sum(times.seconds.values()) / 2
