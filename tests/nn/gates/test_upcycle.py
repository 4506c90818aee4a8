import pytest
import torch

from gatelm.config import ConfigError
from gatelm.nn.gates.gate import GateConfig, GateInit, TopK
from gatelm.nn.gates.presets import GATE_PRESETS
from gatelm.nn.gates.upcycle import (
    HOW_DOCS,
    add_gate,
    compensation,
    new_gates,
    start_gate,
    start_score,
    with_gate,
)
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from helpers import random_ids

TREE = {
    "vocab_size": 40,
    "hidden_dim": 16,
    "num_layers": 3,
    "layer": {
        "mixer": {"num_heads": 4, "num_kv_heads": 2, "bias": "all"},
        "ffn": {"kind": "swiglu", "ffn_dim": 24},
    },
}
FITTING = [
    "sdpa-element",
    "sdpa-head",
    "value",
    "value-head",
    "output",
    "residual",
    "ffn",
    "sdpa-element-shared",
    "value-shared",
    "sdpa-input-independent",
    "sdpa-sparse-input",
]
BEFORE_SOFTMAX = ["key", "query", "scores-x", "scores-key", "scores-q"]


def model_of(cfg, state=None, dtype=torch.float32):
    model = Decoder(cfg)
    init_weights(model, 3)
    with torch.no_grad():  # biases matter to a gate at `out`
        for name, parameter in model.named_parameters():
            if name.endswith("o_proj.bias"):
                parameter.normal_()
    if state is not None:
        model.load_state_dict(state)
    return model.to(dtype).eval()


@pytest.fixture
def plain():
    return model_of(ModelConfig.parse(TREE))


def tokens():
    return random_ids(40, 2, 12, seed=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("how", ["two_sigmoid", "double-out"])
@pytest.mark.parametrize("preset", FITTING)
def test_outputs_stay_bit_for_bit(plain, preset, how, dtype):
    if preset == "sdpa-sparse-input":
        preset = GATE_PRESETS[preset].replace(input_dim=4)
    plain.to(dtype)
    cfg, state = add_gate(plain.cfg, plain.state_dict(), preset, how)
    gated = model_of(cfg, state, dtype)
    with torch.no_grad():
        assert torch.equal(gated(tokens()), plain(tokens()))
        if dtype == torch.bfloat16:  # too coarse to see a gate on a small branch
            return
        # and the gates are really there: opening them otherwise changes the outputs
        for name, parameter in gated.named_parameters():
            if ".gates." in name:
                parameter.add_(0.5)
        assert not torch.equal(gated(tokens()), plain(tokens()))


@pytest.mark.parametrize("preset", BEFORE_SOFTMAX)
def test_before_the_softmax_only_a_score_of_one_will_do(plain, preset):
    cfg, state = add_gate(plain.cfg, plain.state_dict(), preset, "two_sigmoid")
    with torch.no_grad():
        assert torch.equal(model_of(cfg, state)(tokens()), plain(tokens()))
    with pytest.raises(ConfigError, match=r"before the softmax.*use two_sigmoid"):
        add_gate(plain.cfg, plain.state_dict(), preset, "double-out")


@pytest.mark.parametrize("preset", ["sdpa-head", "value", "output", "ffn"])
def test_an_open_bias_changes_rounding_only(plain, preset):
    cfg, state = add_gate(plain.cfg, plain.state_dict(), preset, "open-bias")
    gated = model_of(cfg, state)
    scores = [p for n, p in gated.named_parameters() if ".gates." in n and n.endswith("bias")]
    assert all(bool((p == 4.0).all()) for p in scores)
    assert len(scores) == 3
    with torch.no_grad():
        torch.testing.assert_close(gated(tokens()), plain(tokens()), rtol=0, atol=1e-6)


def test_the_state_is_passed_on_and_only_w_o_is_replaced(plain):
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    state = plain.state_dict()
    _, out = add_gate(plain.cfg, state, "sdpa-element", "double-out")
    for name, tensor in before.items():
        assert torch.equal(state[name], tensor), name
        factor = 2.0 if name.endswith("o_proj.weight") else 1.0
        assert torch.equal(out[name], factor * tensor), name
    added = set(out) - set(before)
    assert added == {f"layers.{i}.attn.gates.sdpa.proj.x.weight" for i in range(3)}
    assert all(not out[name].any() for name in added)


def test_the_new_gate_gets_gradients(plain):
    for how in HOW_DOCS:
        cfg, state = add_gate(plain.cfg, plain.state_dict(), "sdpa-head", how)
        gated = model_of(cfg, state)
        gated(tokens()).logsumexp(-1).sum().backward()
        for layer in gated.layers:
            assert float(layer.attn.gates["sdpa"].proj["x"].weight.grad.abs().sum()) > 0


def test_a_low_rank_gate_starts_shut_at_its_second_matrix(plain):
    low = GateConfig(rank=2)
    cfg, state = add_gate(plain.cfg, plain.state_dict(), low, "two_sigmoid")
    assert state["layers.0.attn.gates.sdpa.proj.x.down"].any()
    assert not state["layers.0.attn.gates.sdpa.proj.x.up"].any()
    with torch.no_grad():
        assert torch.equal(model_of(cfg, state)(tokens()), plain(tokens()))


def test_two_sites_and_layers_that_differ():
    tree = {**TREE, "layer_overrides": [{"layers": [1], "set": {"gates": ["ffn"]}}]}
    plain = model_of(ModelConfig.parse(tree))
    cfg, state = add_gate(plain.cfg, plain.state_dict(), "value", "double-out")
    cfg, state = add_gate(cfg, state, "sdpa-head", "double-out")
    assert [[g.site for g in layer.gates] for layer in cfg.layers()] == [
        ["v", "sdpa"],
        ["ffn", "v", "sdpa"],
        ["v", "sdpa"],
    ]
    with torch.no_grad():
        assert torch.equal(model_of(cfg, state)(tokens()), plain(tokens()))


def test_the_gate_of_a_mixture_of_experts_is_undone_in_every_expert():
    ffn = {"kind": "moe", "num_experts": 4, "top_k": 2, "ffn_dim": 8, "shared": {"ffn_dim": 8}}
    plain = model_of(ModelConfig.parse({**TREE, "layer": {**TREE["layer"], "ffn": ffn}}))
    cfg, state = add_gate(plain.cfg, plain.state_dict(), "ffn", "double-out")
    with torch.no_grad():
        assert torch.equal(model_of(cfg, state)(tokens()), plain(tokens()))


@pytest.mark.parametrize(
    ("preset", "how", "message"),
    [
        ("sdpa-elment", "two_sigmoid", "did you mean 'sdpa-element'"),
        ("sdpa-head", "double_out", "--how 'double_out' is not known; did you mean 'double-out'"),
        ("sdpa-additive-silu", "two_sigmoid", "presets that fit: sdpa-element"),
        ("sdpa-nonsparse", "double-out", "needs a multiplying gate"),
        ("learned-sink", "two_sigmoid", "needs a multiplying gate"),
        ("sdpa-norm", "two_sigmoid", "needs a multiplying gate"),
        ("sdpa-two-sigmoid", "double-out", "needs a multiplying gate"),
        (GateConfig(top_k=TopK(k=1), granularity="head"), "two_sigmoid", "needs a multiplying"),
    ],
)
def test_what_cannot_start_neutral_is_refused(preset, how, message):
    with pytest.raises(ConfigError, match=message):
        start_gate(preset, how)


def test_a_taken_site_is_refused(plain):
    cfg, state = add_gate(plain.cfg, plain.state_dict(), "sdpa-head", "two_sigmoid")
    with pytest.raises(ConfigError, match="layer 0 already has a gate at 'sdpa'"):
        add_gate(cfg, state, "sdpa-element", "two_sigmoid")


def test_a_norm_between_the_gate_and_w_o_cannot_be_undone():
    plain = model_of(
        ModelConfig.parse({**TREE, "layer": {**TREE["layer"], "gates": ["sdpa-norm"]}})
    )
    with pytest.raises(ConfigError, match="the norm at 'sdpa' stands between"):
        add_gate(plain.cfg, plain.state_dict(), "value", "double-out")
    cfg, state = add_gate(plain.cfg, plain.state_dict(), "value", "two_sigmoid")
    with torch.no_grad():
        assert torch.equal(model_of(cfg, state)(tokens()), plain(tokens()))


def test_a_doubled_weight_must_fit_its_dtype(plain):
    state = plain.to(torch.float16).state_dict()
    state["layers.0.attn.o_proj.weight"] = torch.full_like(
        state["layers.0.attn.o_proj.weight"], 40_000.0
    )
    with pytest.raises(ConfigError, match=r"o_proj.weight: times 2 it does not fit torch.float16"):
        add_gate(plain.cfg, state, "sdpa-head", "double-out")


def test_new_gates_are_told_from_other_changes():
    old = ModelConfig.parse(TREE)
    gate = GateConfig(init=GateInit(weight="zeros"))
    new = with_gate(old, gate).replace(vocab_size=None)
    assert new_gates(old, new) == [(0, gate), (1, gate), (2, gate)]
    assert compensation(old, new) == {f"layers.{i}.attn.o_proj.weight": 2.0 for i in range(3)}
    harmless = {
        "mixer": {**TREE["layer"]["mixer"], "head_dim": 4, "dropout": 0.1, "backend": "eager"}
    }
    same = ModelConfig.parse({**TREE, "layer": {**TREE["layer"], **harmless}})
    assert new_gates(old, same) == []
    rounded = old.replace(final_norm={"eps": 9.999999974752427e-07})
    assert new_gates(old, rounded) == []
    with pytest.raises(ConfigError, match=r"final_norm.eps is 1e-06 in the trained .* 1e-05 here"):
        new_gates(old, old.replace(final_norm={"eps": 1e-5}))
    wider = ModelConfig.parse({**TREE, "layer": {**TREE["layer"], "ffn": {"ffn_dim": 32}}})
    with pytest.raises(ConfigError, match=r"layers.0.ffn.ffn_dim is 24 in the trained .* 32 here"):
        new_gates(old, wider)
    with pytest.raises(ConfigError, match="layer 0: the trained model has a gate at 'sdpa'"):
        new_gates(new.replace(vocab_size=40), old)
    other = with_gate(old, GateConfig(granularity="head"))
    with pytest.raises(ConfigError, match="is not that of the trained model"):
        new_gates(new.replace(vocab_size=40), other)


@pytest.mark.parametrize(
    ("gate", "score"),
    [
        (GateConfig(init=GateInit(weight="zeros")), 0.5),
        (GateConfig(activation="tanh01", init=GateInit(weight="zeros")), 0.5),
        (GateConfig(activation="nonsparse_sigmoid", init=GateInit(weight="zeros")), 0.75),
        (GateConfig(inputs=("const",), init=GateInit(bias=4.0)), 0.98201),
        (GateConfig(operation="add", activation="silu", init=GateInit(weight="zeros")), 0.0),
    ],
)
def test_the_start_score(gate, score):
    assert start_score(gate) == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        (GateConfig(), "random weights"),
        (GateConfig(activation="silu", init=GateInit(weight="zeros")), "cannot be undone"),
        (GateConfig(operation="add", init=GateInit(weight="zeros")), "adds 0.5 at its start"),
        (
            GateConfig(granularity="head", inputs=("lse",), init=GateInit(weight="zeros")),
            "input lse",
        ),
    ],
)
def test_a_start_that_is_not_neutral_says_why(gate, message):
    with pytest.raises(ConfigError, match=message):
        start_score(gate)


HYBRID = {
    **TREE,
    "layer": {"mixer": {"kind": "delta", "num_heads": 4}, "ffn": {"ffn_dim": 24}},
    "layer_overrides": [{"layers": "1::2", "set": {"mixer": {"num_heads": 4}}}],
}


@pytest.mark.parametrize("how", ["two_sigmoid", "double-out"])
@pytest.mark.parametrize("preset", ["sdpa-head", "output"])
def test_layers_of_a_hybrid_stay_bit_for_bit(preset, how):
    plain = model_of(ModelConfig.parse(HYBRID))
    cfg, state = add_gate(plain.cfg, plain.state_dict(), preset, how)
    with torch.no_grad():
        assert torch.equal(model_of(cfg, state)(tokens()), plain(tokens()))


def test_a_scale_does_not_pass_an_activation_or_a_norm():
    for kind, preset in (("delta", "value"), ("mamba2", "sdpa-head"), ("linear", "value")):
        mixer = {"kind": kind, "num_heads": 4}
        tree = {**HYBRID, "layer": {**HYBRID["layer"], "mixer": mixer}}
        plain = model_of(ModelConfig.parse(tree))
        with pytest.raises(ConfigError, match="is not linear"):
            add_gate(plain.cfg, plain.state_dict(), preset, "double-out")
        add_gate(plain.cfg, plain.state_dict(), preset, "two_sigmoid")
