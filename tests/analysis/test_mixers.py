"""Models with and without softmax attention are looked at: what does not apply is left out."""

from __future__ import annotations

import math

import pytest
import torch

from gatelm.analysis.causal import gate_effects, interventions
from gatelm.analysis.measure import analyze_batches, health
from gatelm.analysis.probe.gatelm_probe import GatelmProbe
from gatelm.data.batch import Batch
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig

ATTENTION = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 6}
LATENT = {
    "num_heads": 2,
    "head_dim": 6,
    "rope": None,
    "projection": {"kind": "latent", "kv_rank": 5, "value_dim": 4},
}
MIXERS = {
    "latent": LATENT,
    "linear": {"kind": "linear", "num_heads": 2, "rope": {}},
    "mamba2": {"kind": "mamba2", "num_heads": 2, "state_dim": 4},
    "delta": {"kind": "delta", "num_heads": 2, "head_dim": 6},
}


def build(mixer: dict, others: dict, gates: list[str]) -> Decoder:
    cfg = ModelConfig.parse(
        {
            "vocab_size": 23,
            "hidden_dim": 12,
            "num_layers": 3,
            "layer": {"mixer": others, "ffn": {"ffn_dim": 16}, "gates": gates},
            "layer_overrides": [{"layers": "::2", "set": {"mixer": mixer}}],
        }
    )
    model = Decoder(cfg)
    init_weights(model, 0)
    return model.eval()


def batches() -> list[Batch]:
    ids = torch.randint(0, 23, (2, 21), generator=torch.Generator().manual_seed(0))
    documents = torch.zeros(2, 20, dtype=torch.long)
    documents[0, 9:], documents[1, 15:] = 1, -1
    return [Batch(tokens=ids[:, :-1], targets=ids[:, 1:], documents=documents)]


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("hybrid", [True, False])
def test_every_mixer_is_analyzed(name: str, hybrid: bool) -> None:
    model = build(MIXERS[name], ATTENTION if hybrid else MIXERS[name], ["sdpa-head"])
    reads = name == "latent"
    found = analyze_batches(model, batches(), detail="full").metrics()
    assert all(math.isfinite(value) for value in found.values())
    assert 0.4 < found["gate_mean"] < 0.6
    assert ("first_token_share" in found) == (hybrid or reads)
    assert health(model, batches())["gate_mean"] == pytest.approx(found["gate_mean"])
    unread = set(GatelmProbe(model).unread)
    assert unread == (set() if reads else {0, 2} if hybrid else {0, 1, 2})


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("hybrid", [True, False])
def test_gates_of_every_mixer_are_forced(name: str, hybrid: bool) -> None:
    model = build(MIXERS[name], ATTENTION if hybrid else MIXERS[name], ["sdpa-element"])
    found = gate_effects(model, batches())
    assert found["loss_gates_shut_change"] != 0.0
    assert ("first_token_share_gates_shut_change" in found) == (hybrid or name == "latent")
    effects = {effect.name for effect in interventions(model, batches())}
    assert {"none", "gate_open", "gate_shut", "gate_mean"} <= effects
    assert any(effect.startswith("values_zero") for effect in effects) == (
        hybrid or name == "latent"
    )
