import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
import typer
import yaml
from typer.testing import CliRunner

from gatelm.cli.train import train
from gatelm.optim.adamw import AdamWConfig
from gatelm.train import trainer as run_module

RECIPE = """
name: tiny
model:
  hidden_dim: 16
  num_layers: 1
  layer:
    mixer: {num_heads: 2, head_dim: 8}
    ffn: {kind: swiglu, ffn_dim: 24}
    gates: [sdpa-head]
data: {kind: bigram_backcopy, num_tokens: 16, seq_len: 16}
train: {total_steps: 4, batch_size: 4, eval_sequences: 8, device: cpu, threads: 1}
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(RECIPE)
    return path


def gatelm_train(*arguments):
    app = typer.Typer()
    app.command()(train)
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_a_run_ends_with_its_numbers_and_its_model(recipe, tmp_path):
    first = gatelm_train(recipe, "--out", tmp_path / "run", "--set", "train.total_steps=3")
    assert first.exit_code == 0, first.output
    assert "finished: 3 steps" in first.stdout
    assert "val_loss" in first.stdout
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    again = gatelm_train(recipe, "--out", tmp_path / "run", "--set", "train.total_steps=3")
    assert "already finished: 3 steps" in again.stdout


def test_json_is_the_result_alone(recipe, tmp_path):
    done = gatelm_train(recipe, "--out", tmp_path / "run", "--json")
    result = json.loads(done.stdout)
    assert result["status"] == "finished"
    assert result["folder"] == str(tmp_path / "run")
    assert result["metrics"]["val_loss"] > 0


def test_the_default_folder_carries_the_runs_name(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert gatelm_train(recipe).exit_code == 0
    assert (tmp_path / "runs" / "tiny" / "result.json").is_file()


def test_divergence_fails_with_advice(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(AdamWConfig, "lr_at", lambda *_: float("nan"))
    done = gatelm_train(recipe, "--out", tmp_path / "run")
    assert done.exit_code == 1
    assert "diverged at step 1 of 4" in done.stdout
    assert gatelm_train(recipe, "--out", tmp_path / "run").exit_code == 1


def test_a_checkpoint_that_cannot_be_written_is_one_line(recipe, tmp_path, monkeypatch):
    free = type("Usage", (), {"free": 10})()
    monkeypatch.setattr(run_module.checkpoint.shutil, "disk_usage", lambda _: free)
    done = gatelm_train(
        recipe, "--out", tmp_path / "run", "--set", "train.checkpoint_every_steps=2"
    )
    assert done.exit_code == 1
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "the disk is full" in done.stderr


MAIN = """
    import typer
    from gatelm.cli.train import train
    app = typer.Typer()
    app.command()(train)
    app()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_says_how_to_go_on(recipe, tmp_path, number):
    line = [
        sys.executable,
        "-c",
        textwrap.dedent(MAIN),
        str(recipe),
        "--out",
        str(tmp_path / "run"),
    ]
    overrides = ["--set", "train.total_steps=100000", "--set", "train.log_every_steps=1"]
    process = subprocess.Popen(
        [*line, *overrides], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") > 3):
        assert process.poll() is None
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert "go on with: gatelm train" in out
    assert "--set train.total_steps=100000" in out
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    saved = [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()]
    assert saved == [f"step-{records[-1]['step']:08d}"]
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["name"] == "tiny"


def test_a_run_from_a_trained_model_says_whether_its_gates_moved(recipe, tmp_path):
    plain = gatelm_train(recipe, "--out", tmp_path / "plain", "--set", "model.layer.gates=[]")
    assert plain.exit_code == 0, plain.output
    assert "the gates" not in plain.stdout
    gates = "model={layer: {gates: [{site: sdpa, init: {weight: zeros}}]}}"
    start = f"init_from={tmp_path / 'plain'}"
    done = gatelm_train(recipe, "--out", tmp_path / "gated", "--set", start, "--set", gates)
    assert done.exit_code == 0, done.output
    assert "the gates" in done.stdout
    assert "moved: scores changed by" in done.stdout
    assert "their mean from 0.500 to" in done.stdout
    missing = gatelm_train(recipe, "--out", tmp_path / "none", "--set", "init_from=nowhere")
    assert "init_from.path: nowhere: no model folder" in str(missing.exception)
    assert not (tmp_path / "none").exists()


def test_going_on_after_stop_at_step_leaves_it_out(recipe, tmp_path):
    options = ["--out", tmp_path / "run", "--set", "train.stop_at_step=2"]
    stopped = gatelm_train(recipe, *options)
    assert stopped.exit_code == 0
    again = stopped.stdout.partition("go on with: gatelm train ")[2].split()
    assert "train.stop_at_step=2" not in again
    done = gatelm_train(*again)
    assert "finished: 4 steps" in done.stdout
    recipe.write_text(RECIPE.replace("total_steps: 4,", "total_steps: 4, stop_at_step: 2,"))
    stopped = gatelm_train(recipe, "--out", tmp_path / "other")
    again = stopped.stdout.partition("go on with: gatelm train ")[2].split()
    assert "finished: 4 steps" in gatelm_train(*again).stdout


@pytest.mark.slow
def test_a_terminal_that_is_really_closed_saves(recipe, tmp_path):
    """After a hang-up writing to the terminal fails, and it no longer looks like one."""
    import pty

    main, terminal = pty.openpty()
    script = "import os, sys; os.setsid(); import fcntl, termios; "
    script += "fcntl.ioctl(0, termios.TIOCSCTTY, 0); from gatelm.cli.main import main; main()"
    words = ["train", str(recipe), "--out", str(tmp_path / "run")]
    words += ["--set", "train.total_steps=100000", "--set", "train.log_every_steps=1"]
    process = subprocess.Popen(
        [sys.executable, "-c", script, *words], stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") > 3):
        assert process.poll() is None
    os.close(main)
    assert process.wait(timeout=60) == 128 + signal.SIGHUP
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 1
