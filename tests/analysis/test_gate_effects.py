import math

import pytest
import torch

from gatelm.analysis.causal import gate_effects
from gatelm.analysis.measure import analyze_batches
from gatelm.analysis.metrics.registry import METRICS, describe, split_mark
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig


def metrics_of(model, rows):
    return analyze_batches(model, rows, map_tokens=0).metrics()


def test_open_gates_change_loss_and_sinks_to_those_without_gates(build, batch):
    rows = [batch(), batch(seed=1)]
    model = build("sdpa-element")
    effects = gate_effects(model, rows)
    plain, ungated = metrics_of(model, rows), metrics_of(build(), rows)
    for name, stem in (
        ("loss_gates_open_change", "val_loss"),
        ("first_token_share_gates_open_change", "first_token_share"),
        ("sink_rate_gates_open_change", "sink_rate"),
    ):
        assert effects[name] == pytest.approx(ungated[stem] - plain[stem], rel=1e-3, abs=1e-6)
    assert abs(effects["loss_gates_open_change"]) > 1e-3
    assert abs(effects["first_token_share_gates_open_change"]) > 1e-4


def test_shut_gates_change_the_loss_to_that_without_attention(build, batch):
    rows, model = [batch()], build("sdpa-head")
    effects, plain = gate_effects(model, rows), metrics_of(model, rows)
    with torch.no_grad():
        for block in model.layers:
            block.attn.o_proj.weight.zero_()
    shut = metrics_of(model, rows)
    change = shut["val_loss"] - plain["val_loss"]
    assert effects["loss_gates_shut_change"] == pytest.approx(change, rel=1e-4)
    change = shut["first_token_share"] - plain["first_token_share"]
    assert effects["first_token_share_gates_shut_change"] == pytest.approx(change, rel=1e-3)


def test_static_gates_are_at_their_means_already(build, batch):
    """Each site and layer gets its own mean."""
    sites = [{"site": s, "inputs": ["const"], "granularity": "head"} for s in ("v", "sdpa", "ffn")]
    model = build(*sites)
    with torch.no_grad():
        for place, block in enumerate(model.layers):
            block.attn.gates["v"].bias.fill_(2.0 + place)
            block.attn.gates["sdpa"].bias.fill_(-place)
            block.gates["ffn"].bias.fill_(-2.0)
    effects = gate_effects(model, [batch(), batch(seed=1)])
    assert effects["loss_gates_mean_change"] == pytest.approx(0.0, abs=1e-5)
    assert effects["first_token_share_gates_mean_change"] == pytest.approx(0.0, abs=1e-6)
    assert abs(effects["loss_gates_open_change"]) > 1e-3


def test_layers_may_have_different_gates_or_none(build, batch):
    gates = {0: ["sdpa-head"], 1: ["value", {"site": "sdpa", "activation": "tanh01"}], 2: []}
    tree = build().cfg.tree() | {
        "num_layers": 3,
        "layer_overrides": [{"layers": [i], "set": {"gates": g}} for i, g in gates.items()],
    }
    model = Decoder(ModelConfig.parse(tree, "model"))
    init_weights(model, 0)
    effects = gate_effects(model, [batch()])
    assert len(effects) == 9
    assert effects["loss_gates_shut_change"] != effects["loss_gates_open_change"]


def test_marks_have_changes_of_their_own(build, batch):
    mark = torch.rand(3, 24, generator=torch.Generator().manual_seed(0)) < 0.5
    rows, model = [batch(marks={"m": mark})], build("sdpa-element")
    effects = gate_effects(model, rows)
    plain, ungated = metrics_of(model, rows), metrics_of(build(), rows)
    for name, stem in (
        ("loss_gates_open_change_m", "val_loss_m"),
        ("first_token_share_gates_open_change_m", "first_token_share_m"),
    ):
        assert effects[name] == pytest.approx(ungated[stem] - plain[stem], rel=1e-3, abs=1e-6)
    assert set(effects) <= {n for n in effects if split_mark(n)[0] in METRICS}
    assert describe("loss_gates_open_change_m").label.endswith("m positions")
    assert len(effects) == 9 + 6


def test_a_model_without_gates_has_none_and_nothing_changes(build, batch):
    assert gate_effects(build(), []) == {}
    model, rows = build("sdpa-head"), [batch()]
    before = metrics_of(model, rows)
    model.train()
    gate_effects(model, rows)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert metrics_of(model, rows) == before


def test_what_is_not_a_number_is_left_out(build, batch):
    model, rows = build("sdpa-head"), [batch()]
    with torch.no_grad():
        model.layers[0].attn.gates["sdpa"].proj["x"].weight.fill_(math.nan)
    effects = gate_effects(model, rows)
    assert all(math.isfinite(change) for change in effects.values())


def test_no_batches_are_refused(build):
    with pytest.raises(ValueError, match="no batches"):
        gate_effects(build("value"), [])
