import copy

import pytest
import torch

from gatelm.analysis.movement import gate_movement, sentence
from gatelm.analysis.probe.layout import Placed
from gatelm.nn.gates.gate import GateConfig, GateInit
from gatelm.nn.gates.upcycle import add_gate
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig

TREE = {
    "vocab_size": 20,
    "hidden_dim": 16,
    "num_layers": 2,
    "layer": {"mixer": {"num_heads": 2}, "ffn": {"ffn_dim": 24}},
}


def batch():
    tokens = torch.randint(20, (3, 8), generator=torch.Generator().manual_seed(1))
    documents = torch.zeros_like(tokens)
    documents[1, 5:] = -1  # padding, which no statistic may see
    return Placed(tokens, tokens.roll(-1, 1), documents, {})


@pytest.fixture
def start():
    plain = Decoder(ModelConfig.parse(TREE))
    init_weights(plain, 0)
    cfg, state = add_gate(plain.cfg, plain.state_dict(), "sdpa-head", "open-bias")
    cfg, state = add_gate(cfg, state, "ffn", "two_sigmoid")
    model = Decoder(cfg)
    model.load_state_dict(state)
    return model


def test_gates_that_stay_have_not_moved(start):
    found = gate_movement(start, copy.deepcopy(start), [batch()])
    flat = found.metrics()
    assert flat["gate_score_change"] == flat["gate_weight_change"] == 0.0
    assert flat["gate_mean_start"] == pytest.approx((0.98201 + 1.0) / 2, abs=1e-4)
    assert sentence(flat).startswith("the gates hardly moved")


def test_a_change_of_one_bias_is_found_where_it_is(start):
    end = copy.deepcopy(start)
    with torch.no_grad():
        end.layers[1].attn.gates["sdpa"].bias[0] = 0.0  # one of two heads, from 0.982 to 0.5
    found = gate_movement(start, end, [batch(), batch()])
    by_place = {(e["layer"], e["site"]): e for e in found.to_json()}
    assert set(by_place) == {(0, "ffn"), (0, "sdpa"), (1, "ffn"), (1, "sdpa")}
    moved = by_place.pop((1, "sdpa"))
    assert moved["largest_head_change"] == pytest.approx(0.48201, abs=1e-4)
    assert moved["score_change"] == pytest.approx(0.48201 / 2, abs=1e-4)
    assert moved["mean"] == pytest.approx(0.98201 - 0.48201 / 2, abs=1e-4)
    assert moved["start_token_std"] == moved["token_std"] == pytest.approx(0.0, abs=1e-6)
    # 2 heads x (16 weights + 1 bias); the change is 4, the norm of the biases sqrt(2) * 4
    assert moved["weight_change"] == pytest.approx((16 / 34) ** 0.5)
    assert moved["relative_change"] == pytest.approx(0.5**0.5)
    assert all(e["score_change"] == 0.0 for e in by_place.values())
    assert "relative_change" not in by_place[0, "ffn"]
    assert found.metrics()["gate_score_change"] == pytest.approx(0.48201 / 8, abs=1e-4)
    text = sentence({**found.metrics(), "gate_mean": 0.93, "gate_token_std": 0.0})
    assert text.startswith("the gates moved: scores changed by 0.0603 on average, their mean from")


def test_a_change_of_weights_makes_scores_vary_over_tokens(start):
    end = copy.deepcopy(start)
    with torch.no_grad():
        end.layers[0].gates["ffn"].proj["x"].weight.normal_(std=0.3)
    entry = gate_movement(start, end, [batch()]).to_json()
    assert {(e["layer"], e["site"]): e["token_std"] > 0.05 for e in entry}[0, "ffn"]


def test_models_that_cannot_be_compared(start):
    plain = Decoder(ModelConfig.parse(TREE))
    init_weights(plain, 0)
    assert gate_movement(plain, copy.deepcopy(plain), [batch()]).metrics() == {}
    assert sentence({"val_loss": 2.0}) is None
    with pytest.raises(ValueError, match="gates at different sites"):
        gate_movement(plain, start, [batch()])
    with pytest.raises(ValueError, match="no batches"):
        gate_movement(start, start, [])


def test_gates_without_parameters_have_scores_only():
    gate = GateConfig(granularity="head", inputs=("lse",), init=GateInit())
    mixer = {"num_heads": 2, "backend": "eager"}
    tree = {**TREE, "layer": {**TREE["layer"], "mixer": mixer, "gates": [gate.tree()]}}
    model = Decoder(ModelConfig.parse(tree))
    init_weights(model, 0)
    found = gate_movement(model, copy.deepcopy(model), [batch()])
    assert "weight_change" not in found.to_json()[0]
    assert "gate_weight_change" not in found.metrics()
