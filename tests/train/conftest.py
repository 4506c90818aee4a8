import sys
import types

import pytest

import gatelm.analysis
from helpers import tiny_run


@pytest.fixture
def tiny():
    """A run config of a few milliseconds a step; call it with a tree to lay on."""
    return tiny_run


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
