"""Models with other layers than softmax attention: what can be read is read, the rest is named."""

import json
import math

import pytest
import torch

from gatelm.analysis.causal import interventions
from gatelm.analysis.measure import analyze_batches, health
from gatelm.analysis.metrics.registry import METRICS
from gatelm.analysis.probe.gatelm_probe import GatelmProbe
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig

VOCAB = 50  # at least that of the rows
DELTA = {"kind": "delta", "num_heads": 4, "num_key_heads": 2, "head_dim": 5, "value_dim": 3}
ATTENTION = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8}


def model_of(*overrides, gates=("sdpa-silu-gate",)):
    layer = {"mixer": DELTA, "ffn": {"ffn_dim": 24}, "gates": list(gates)}
    tree = {"vocab_size": VOCAB, "hidden_dim": 16, "num_layers": 3, "layer": layer}
    model = Decoder(ModelConfig.parse({**tree, "layer_overrides": list(overrides)})).eval()
    init_weights(model, 0)
    return model


HYBRID = {"layers": [1], "set": {"mixer": ATTENTION, "gates": ["sdpa-head"]}}


@pytest.fixture
def rows(batch):
    return batch(rows=2, tokens=20)


def test_gates_of_every_layer_and_the_attention_there_is(rows):
    model = model_of(HYBRID)
    probe = GatelmProbe(model)
    assert probe.attention_layers == (1,)
    assert sorted(probe.unread) == [0, 2]
    assert probe.gate_sites == dict.fromkeys(range(3), ("sdpa",))
    found = analyze_batches(model, [rows])
    metrics = found.metrics()
    assert all(math.isfinite(value) for value in metrics.values())
    assert {"val_loss", "first_token_share", "gate_mean", "max_activation"} <= set(metrics)
    assert set(found.totals.attention) == {1}
    tree = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert tree
    assert all(METRICS[name].in_health for name in health(model, [rows]))


def test_a_model_without_softmax_attention_has_the_other_measures(rows):
    found = analyze_batches(model_of(), [rows])
    metrics = found.metrics()
    assert "first_token_share" not in metrics
    assert {"val_loss", "gate_mean", "max_activation"} <= set(metrics)
    json.dumps(found.to_json(), allow_nan=False)
    assert "first_token_share" not in health(model_of(gates=()), [rows])


def test_a_gate_of_a_recurrent_layer_can_be_shut(rows):
    model = model_of(HYBRID)
    probe = GatelmProbe(model)
    with torch.no_grad():
        plain = probe.observe(rows.tokens)
        with probe.intervene({"gate": lambda layer, scores: scores * (layer != 0)}):
            shut = probe.observe(rows.tokens)
    assert not torch.allclose(plain, shut)
    effects = {effect.name: effect for effect in interventions(probe, [rows])}
    assert {"none", "gate_shut", "gate_open", "values_zero_0"} <= set(effects)
    assert effects["gate_shut"].increase != 0
