import json
import signal
import subprocess
import sys
import textwrap

import pytest

from gatelm.config.load import dump
from gatelm.train.saving import checkpoint
from gatelm.train.trainer import train
from gatelm.train.watching.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("fake_analysis")

DROPOUT = {"model": {"layer": {"residual_dropout": 0.2}}}


@pytest.fixture
def packed_text(tmp_path):
    """A text corpus of short documents: several share a row."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for index in range(30):
        words = " ".join(f"word{(index * 7 + j) % 11}" for j in range(2 + index % 5))
        (corpus / f"{index:02d}.txt").write_text(words)
    return {
        "kind": "text",
        "source": str(corpus),
        "tokenizer": {"kind": "byte"},
        "seq_len": 48,
        "holdout_every": 5,
        "cache": str(tmp_path / "cache"),
    }


def trace(folder):
    keys = ("step", "tokens", "loss", "lr", "grad_norm")
    return [tuple(r[k] for k in keys) for r in read_metrics(folder / "metrics.jsonl", "train")]


def last_state(folder):
    path = checkpoint.list_checkpoints(folder / "checkpoints")[-1]
    state = checkpoint.read_state(path)
    del state["throughput"]
    return state


def assert_same_run(one, two):
    assert trace(one) == trace(two)
    weights = "model/model.safetensors"
    assert (one / weights).read_bytes() == (two / weights).read_bytes()
    assert last_state(one) == last_state(two)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("data", ["text", "synthetic"])
def test_three_resumes_in_a_row_are_bitwise_one_run(tiny, tmp_path, packed_text, data, precision):
    tree = {
        **DROPOUT,
        "train": {"total_steps": 12, "precision": precision, "checkpoint_every_steps": 100,
                  "spike_window_steps": 3, "spike_threshold_std": 1.0, "spike_policy": "skip"},
    }  # fmt: skip
    if data == "text":
        tree["data"] = packed_text
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(tiny(tree), whole)
    for stop in (2, 3, 8, None):
        tree["train"]["stop_at_step"] = stop
        train(tiny(tree), parts)
    assert_same_run(whole, parts)


RUN = """
    import os, signal, sys
    from pathlib import Path
    from gatelm.config.load import load
    from gatelm.train.saving import checkpoint
    from gatelm.train.config import RunConfig
    from gatelm.train.trainer import train

    recipe, folder, kill_at_file, *overrides = sys.argv[1:]
    write_json, written = checkpoint.write_json, []

    def killed_write(path, value):
        written.append(path)
        if len(written) == int(kill_at_file):
            path.write_text('{"half": ')
            os.kill(os.getpid(), signal.SIGKILL)
        write_json(path, value)

    checkpoint.write_json = killed_write
    train(RunConfig.parse(load(recipe, overrides).tree), Path(folder))
"""


def run_apart(cfg, recipe, folder, *overrides, kill_at_file=0):
    """Train in a fresh process; `kill_at_file` kills it in the n-th file written while saving.

    A run that is compared with one of these is made here too: the type checks of the test process
    draw from Python's generator, whose state is part of what is compared.
    """
    recipe.write_text(dump(cfg.tree()))
    script = textwrap.dedent(RUN)
    arguments = [str(recipe), str(folder), str(kill_at_file), *overrides]
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True)


@pytest.mark.slow
def test_fresh_processes_resume_bitwise(tiny, tmp_path, packed_text):
    cfg = tiny({**DROPOUT, "data": packed_text, "train": {"checkpoint_every_steps": 100}})
    recipe, whole, parts = (tmp_path / name for name in ("r.yaml", "whole", "parts"))
    for stop, folder in (("null", whole), ("2", parts), ("null", parts)):
        done = run_apart(cfg, recipe, folder, f"train.stop_at_step={stop}")
        assert done.returncode == 0, done.stderr
    assert_same_run(whole, parts)


@pytest.mark.slow
def test_kill_while_saving_then_resume_is_bitwise_one_run(tiny, tmp_path):
    cfg = tiny({**DROPOUT, "train": {"total_steps": 8, "checkpoint_every_steps": 1}})
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    assert run_apart(cfg, tmp_path / "r.yaml", whole).returncode == 0
    for kill_at_file, sound in ((4, 1), (5, 3)):  # a manifest, then a state
        done = run_apart(cfg, tmp_path / "r.yaml", folder, kill_at_file=kill_at_file)
        assert done.returncode == -signal.SIGKILL, done.stderr
        left = sorted(p.name for p in (folder / "checkpoints").iterdir())
        assert left[-1] == f"step-{sound + 1:08d}.tmp"
        assert left[-2] == f"step-{sound:08d}"
    assert run_apart(cfg, tmp_path / "r.yaml", folder).returncode == 0
    assert_same_run(whole, folder)
    events = list(read_metrics(folder / "metrics.jsonl", "event"))
    assert [(e["what"], e["step"]) for e in events] == [("resumed", 1), ("resumed", 3)]


def test_a_warning_replaces_random_numbers_of_another_torch(tiny, tmp_path, caplog):
    tree = {"train": {"stop_at_step": 2}}
    train(tiny(tree), tmp_path)
    from gatelm.train.saving import state as state_module

    saved = json.loads((tmp_path / "checkpoints/step-00000002/state.json").read_text())
    saved["versions"]["torch"] = "1.0.0"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_module, "versions", lambda: {"torch": "1.0.0"})
        train(tiny(), tmp_path)
    assert "other random numbers" in caplog.text
