"""`gatelm study`, with the real trainer on a model of a few hundred weights."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from gatelm.cli.study.commands import app
from gatelm.config import ConfigError
from gatelm.config.load import dump


@pytest.fixture
def recipe(make_study, tmp_path):
    """A/A: two arms of the same config, and one that differs."""
    study = make_study(arms={"none": {}, "same": {}, "gated": {"model.layer.gates": ["sdpa-head"]}})
    path = tmp_path / "study.yaml"
    path.write_text(dump(study.tree()))
    return path


def test_plan(recipe, tmp_path):
    words = ["plan", str(recipe), "--set", "parts.main.seeds=[3]", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0
    tree = json.loads(result.stdout)
    assert [(r["arm"], r["seed"]) for r in tree["runs"]] == [("none", 3), ("same", 3), ("gated", 3)]
    assert tree["runs"][2]["gate_parameters"] == 32
    assert "3 of 3 runs to train" in CliRunner().invoke(app, words).stdout
    assert not (tmp_path / "out").exists()


def test_report_needs_a_study(tmp_path):
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert isinstance(result.exception, ConfigError)
    assert "no study.yaml there" in str(result.exception)


@pytest.fixture
def small_report(monkeypatch):
    """The report has its own tests, and takes its time."""
    from gatelm.report.study import build

    def build_report(root):
        page = root / "report.html"
        page.write_text("<html>")
        return page

    monkeypatch.setattr(build, "build_report", build_report)


@pytest.mark.slow
@pytest.mark.usefixtures("small_report")
def test_run_to_the_verdict(recipe, tmp_path):
    out = tmp_path / "out"
    words = ["run", str(recipe), "--out", str(out), "--workers", "1"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert f"report   {out / 'report.html'}" in result.stdout
    results = json.loads((out / "results.json").read_text())
    assert results["command"] == f"gatelm study run {recipe} --out {out}"
    assert {r["status"] for r in results["runs"]} == {"finished"}
    same = next(c for c in results["comparisons"] if c["arm"] == "same")
    assert (same["verdict"], same["difference"]) == ("no difference", 0.0)
    assert same["n"] == 2

    page = (out / "report.html").stat().st_mtime_ns
    again = CliRunner().invoke(app, [*words, "--json"])
    assert json.loads(again.stdout) == results
    assert (out / "report.html").stat().st_mtime_ns == page
    assert CliRunner().invoke(app, ["report", str(out)]).exit_code == 0
    assert (out / "report.html").stat().st_mtime_ns > page


@pytest.mark.slow
def test_ctrl_c_saves_and_says_how_to_go_on(recipe, tmp_path):
    out = tmp_path / "out"
    words = ["run", str(recipe), "--out", str(out), "--workers", "1"]
    words += ["--set", "parts.main.base.train.total_steps=1000000"]
    words += ["--set", "parts.main.base.train.log_every_steps=1"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from gatelm.cli.study.commands import app; app()", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not [m for m in out.rglob("metrics.jsonl") if m.stat().st_size]:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers, too
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT, stderr
    assert "stopped by SIGINT, 6 of 6 runs to go; go on with: gatelm study run" in stderr
    assert "Traceback" not in stderr
    assert [c.name for c in out.rglob("checkpoints/step-*")]
    assert "unfinished: 6 of 6 runs" in stdout
