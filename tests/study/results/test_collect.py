"""Results from run folders written by hand."""

from __future__ import annotations

import csv
import io
import json

import pytest
from rich.console import Console

from gatelm.study.results.collect import collect, to_csv, write_results
from gatelm.study.results.schema import read_results
from gatelm.study.results.table import verdicts


@pytest.fixture
def write(tmp_path):
    """Give a run of the plan a result."""

    def write(run, status="finished", **metrics):
        folder = tmp_path / run.folder
        folder.mkdir(parents=True, exist_ok=True)
        result = {
            "status": status,
            "config_hash": run.config_hash,
            "metrics": metrics,
            "seconds": 1.5,
            "parameters": 100,
            "gate_parameters": 4,
        }
        (folder / "result.json").write_text(json.dumps(result))
        record = {"versions": {"torch": "2.x"}, "threads": 1}
        (folder / "run.json").write_text(json.dumps(record))

    return write


def fill(plan, write, effect):
    """Losses with a scatter that seeds share and one of their own."""
    for run in plan.runs:
        shift = effect.get(run.arm, 0.0)
        write(run, val_loss=3.0 + 0.3 * run.seed + shift * (1 + 0.01 * run.seed))


def by_arm(results, metric="val_loss"):
    return {c.arm: c for c in results.comparisons if c.metric == metric}


def test_equal_arms_have_no_winner_and_a_planted_effect_is_found(make_plan, write, tmp_path):
    plan = make_plan(arms={"none": {}, "same": {}, "low": {"optim.lr": 0.1}}, seeds=[0, 1, 2])
    fill(plan, write, {"low": -0.5})
    compared = by_arm(collect(plan, tmp_path))
    assert compared["same"].verdict == "no difference"
    assert compared["same"].difference == 0.0
    low = compared["low"]
    assert (low.verdict, low.n, low.family_size) == ("lower", 3, 2)
    assert low.difference == pytest.approx(-0.505)
    assert low.sentence.startswith("low against none, val_loss: -0.505 [-0.517, -0.493]")


def test_one_seed_is_too_few(make_plan, write, tmp_path):
    plan = make_plan(seeds=[0])
    fill(plan, write, {"low": -0.5})
    (comparison,) = collect(plan, tmp_path).comparisons
    assert (comparison.verdict, comparison.difference) == ("too few seeds", -0.5)


def test_pairs_are_at_the_same_point_of_the_axes(make_plan, write, tmp_path):
    plan = make_plan(axes={"optim.weight_decay": [0.0, 0.1]})
    for run in plan.runs:
        decay = run.axes["optim.weight_decay"]
        write(run, val_loss=100 * decay + 0.1 * run.seed + (0.5 if run.arm == "low" else 0.0))
    results = collect(plan, tmp_path)
    assert [c.axes for c in results.comparisons] == [
        {"optim.weight_decay": 0.0},
        {"optim.weight_decay": 0.1},
    ]
    assert [c.difference for c in results.comparisons] == pytest.approx([0.5, 0.5])
    assert all(c.family_size == 2 for c in results.comparisons)
    assert len(results.summaries) == 4


def test_what_is_not_there_is_said(make_plan, write, tmp_path):
    plan = make_plan(seeds=[0, 1, 2])
    for run in plan.runs[:-1]:
        write(run, val_loss=1.0 + run.seed)
    write(plan.runs[3], status="diverged")
    results = collect(plan, tmp_path)
    assert [r.status for r in results.runs] == [
        *["finished"] * 3,
        "diverged",
        "finished",
        "unfinished",
    ]
    (comparison,) = results.comparisons
    assert (comparison.n, comparison.verdict) == (1, "diverged")
    assert results.summaries[1].diverged == 1
    text = render(results)
    assert "diverged: 1 of 6 runs (main/low/seed 0)" in text
    assert "unfinished: 1 of 6 runs (main/low/seed 2)" in text


def test_a_metric_one_side_never_has_is_not_compared(make_plan, write, tmp_path):
    plan = make_plan(metrics=["val_loss", "gate_mean"])
    for run in plan.runs:
        gate = {} if run.arm == "none" else {"gate_mean": 0.4}
        write(run, val_loss=1.0, **gate)
    results = collect(plan, tmp_path)
    assert [c.metric for c in results.comparisons] == ["val_loss"]
    means = [s.mean for s in results.summaries if s.metric == "gate_mean"]
    assert means == [None, 0.4]


def test_numbers_that_are_none_are_no_numbers(make_plan, write, tmp_path):
    plan = make_plan(seeds=[0, 1])
    for run in plan.runs:
        write(run, val_loss=None if run.seed else float("nan"))
    results = collect(plan, tmp_path)
    results.to_json()
    assert results.runs[0].metrics == {"val_loss": None}
    assert results.comparisons[0].verdict == "too few seeds"


def test_csv_has_a_row_a_run(make_plan, write, tmp_path):
    plan = make_plan(axes={"data.task_seed": [0, 1]}, seeds=[0])
    for run in plan.runs[:3]:
        write(run, val_loss=1.25, sink_rate=0.1)
    rows = list(csv.DictReader(io.StringIO(to_csv(collect(plan, tmp_path)))))
    assert len(rows) == 4
    assert rows[0] == {
        "part": "main",
        "arm": "none",
        "seed": "0",
        "status": "finished",
        "config_hash": plan.runs[0].config_hash,
        "parameters": "100",
        "gate_parameters": "4",
        "data.task_seed": "0",
        "sink_rate": "0.1",
        "val_loss": "1.25",
    }
    assert (rows[3]["status"], rows[3]["val_loss"]) == ("unfinished", "")


def test_written_results_say_how_to_repeat_them(make_plan, write, tmp_path):
    plan = make_plan()
    fill(plan, write, {})
    (tmp_path / "command.txt").write_text("gatelm study run x.yaml\n")
    results = write_results(plan, tmp_path)
    assert results == read_results(tmp_path)
    assert results.command == "gatelm study run x.yaml"
    assert results.versions == {"precision": "fp32", "torch": "2.x", "threads": "1"}
    part = results.parts["main"]
    assert part.arm_overrides["low"] == {"optim.lr": 0.001}
    assert part.base_config["optim"] == {"lr": 0.01}
    written = (tmp_path / "results.json").stat().st_mtime_ns
    write_results(plan, tmp_path)
    assert (tmp_path / "results.json").stat().st_mtime_ns == written


def render(results) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(verdicts(results))
    return console.export_text()


def test_the_table_shows_verdict_and_uniform_value(make_plan, write, tmp_path):
    plan = make_plan(seeds=[0, 1, 2], metrics=["first_token_share_non_trigger"])
    for run in plan.runs:
        share = (0.05 if run.arm == "low" else 0.99) + 0.001 * run.seed**2
        metrics = {
            "first_token_share_non_trigger": share + (0.002 * run.seed if run.arm == "low" else 0),
            "first_token_share_uniform_non_trigger": 0.06,
        }
        write(run, **metrics)
    text = render(collect(plan, tmp_path))
    assert "uniform attention would give 0.060" in " ".join(text.split())
    row = next(line for line in text.splitlines() if line.startswith("low"))
    assert row.split()[0] == "low"
    assert "-0.9380 [-0.9430, -0.9330] 3 lower" in " ".join(row.split())
