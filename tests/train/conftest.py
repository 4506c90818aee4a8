import sys
import types

import pytest

import gatelm.analysis
from gatelm.config.load import merge
from gatelm.train.config import RunConfig

TINY = {
    "name": "tiny",
    "seed": 1,
    "model": {
        "hidden_dim": 16,
        "num_layers": 2,
        "layer": {
            "mixer": {"num_heads": 2, "head_dim": 8},
            "ffn": {"kind": "swiglu", "ffn_dim": 24},
            "gates": ["sdpa-head"],
        },
    },
    "data": {"kind": "bigram_backcopy", "num_tokens": 16, "seq_len": 16},
    "optim": {"lr": 3e-3, "schedule": {"kind": "cosine", "warmup_steps": 2}},
    "train": {
        "total_steps": 6,
        "batch_size": 4,
        "eval_sequences": 8,
        "log_every_steps": 1,
        "precision": "fp32",
        "device": "cpu",
        "threads": 1,
    },
}


@pytest.fixture
def tiny():
    """A run config of a few milliseconds a step; call it with a tree to lay on."""

    def make(over=None):
        return RunConfig.parse(merge(TINY, over or {}))

    return make


class FakeAnalysis:
    def metrics(self):
        return {"first_token_share": 0.25, "val_loss": 2.5}

    def to_json(self):
        return {"seq_len": 16}


@pytest.fixture
def fake_analysis(monkeypatch):
    """The final analysis and the health pass, replaced by constants."""
    module = types.ModuleType("gatelm.analysis.measure")
    module.analyze_batches = lambda model, batches, **options: FakeAnalysis()
    module.health = lambda model, batches: {"first_token_share": 0.25}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(gatelm.analysis, "measure", module, raising=False)
