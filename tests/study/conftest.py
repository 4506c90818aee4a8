"""A small study, and a trainer for it that worker processes can import."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gatelm.study.planning.plan import plan
from gatelm.study.planning.spec import StudyConfig

HERE = str(Path(__file__).parent)
if HERE not in sys.path:  # worker processes inherit the path, and import the fake trainer by it
    sys.path.insert(0, HERE)

from fake_trainer import FakeConfig  # noqa: E402

BASE = {
    "model": {
        "hidden_dim": 16,
        "num_layers": 1,
        "layer": {"mixer": {"num_heads": 2}, "ffn": {"ffn_dim": 32}},
    },
    "data": {"kind": "bigram_backcopy", "num_tokens": 16, "num_triggers": 2, "seq_len": 8},
    "optim": {"lr": 0.01},
    "train": {
        "total_steps": 3,
        "batch_size": 2,
        "eval_sequences": 8,
        "threads": 1,
        "precision": "fp32",
    },
}


@pytest.fixture
def make_study():
    """A study of one part; keyword arguments replace the part's fields."""

    def make(**fields):
        part = {
            "base": BASE,
            "arms": {"none": {}, "low": {"optim.lr": 0.001}},
            "baseline": "none",
            "seeds": [0, 1],
            **fields,
        }
        return StudyConfig.parse({"name": "tiny", "parts": {"main": part}})

    return make


@pytest.fixture
def make_plan(make_study):
    return lambda **fields: plan(make_study(**fields))


@pytest.fixture
def make_fake_plan(make_plan):
    """A plan for the fake trainer; `behaviour` maps arms to what their runs do."""

    def make(behaviour=None, total_steps=3, **fields):
        made = make_plan(**fields)
        runs = [
            replace(
                run,
                config=FakeConfig(
                    config_hash=run.config_hash,
                    seed=run.seed,
                    lr=run.config.optim.lr,
                    total_steps=total_steps,
                    behaviour=(behaviour or {}).get(run.arm, "trains"),
                ),
            )
            for run in made.runs
        ]
        return replace(made, runs=tuple(runs))

    return make


@pytest.fixture
def trainer():
    return "fake_trainer:train"
