"""Every axis value of the gate, at every site, against the naive layer: forward and gradients."""

from __future__ import annotations

import pytest
import torch

from gatelm.nn.attention.masks import AttentionMask, positions_in_documents
from gatelm.nn.block import Block, LayerConfig
from gatelm.nn.cache import KVCache
from gatelm.nn.forward_state import Context
from gatelm.nn.gates.gate import ACTIVATIONS, INPUT_DOCS, OPERATIONS, SHARINGS
from gatelm.nn.gates.presets import GATE_PRESETS, PRESET_DOCS
from gatelm.nn.gates.sites import SITES
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.testing.reference import REFERENCE_ACTIVATIONS, reference_layer

DIM, T = 16, 5


def layer_config(gates: list, **mixer: object) -> LayerConfig:
    base = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "backend": "eager"}
    return LayerConfig.parse(
        {"mixer": {**base, **mixer}, "ffn": {"kind": "mlp", "ffn_dim": 8}, "gates": gates}
    )


def random_block(cfg: LayerConfig, dim: int = DIM) -> Block:
    torch.manual_seed(0)
    block = Block(cfg, dim, 0).double().eval()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(std=0.5)
    return block


def compare(cfg: LayerConfig, documents: torch.Tensor | None = None) -> None:
    """Block == naive layer, output and gradients of every parameter and of the input."""
    model_cfg = ModelConfig(vocab_size=3, hidden_dim=DIM, num_layers=1, layer=cfg)
    block = random_block(model_cfg.layers()[0])
    resid = torch.randn(2, T, DIM, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, T, DIM, dtype=torch.float64)
    params = dict(block.named_parameters())
    leaves = [resid, *params.values()]

    positions = torch.arange(T) if documents is None else positions_in_documents(documents)
    context = Context(AttentionMask(T, T, documents), positions)
    ours = block(resid, context)
    naive = reference_layer(cfg, DIM, params, resid, documents)
    torch.testing.assert_close(ours, naive, atol=1e-10, rtol=1e-10)
    ours_grads = torch.autograd.grad((ours * weights).sum(), leaves, allow_unused=True)
    naive_grads = torch.autograd.grad((naive * weights).sum(), leaves, allow_unused=True)
    for name, a, b in zip(["resid", *params], ours_grads, naive_grads, strict=True):
        assert a is not None, f"{name} takes no part"
        assert b is not None, f"{name} takes no part in the reference"
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


def one_at_a_time() -> list[dict]:
    """Each axis value with the others at their default, then combinations that interact."""
    out: list[dict] = [{}]
    out += [{"granularity": g} for g in ("element", "head")]
    out += [{"activation": a} for a in ACTIVATIONS]
    out += [{"operation": o} for o in OPERATIONS]
    out += [{"sharing": s, "granularity": g} for s in SHARINGS for g in ("element", "head")]
    out += [{"inputs": [i]} for i in INPUT_DOCS]
    out += [{"inputs": ["x", "y"]}, {"inputs": ["lse", "x", "const"], "granularity": "head"}]
    out += [{"inputs": ["y"], "sharing": s} for s in ("per_kv_group", "shared")]
    out += [{"inputs": ["q"], "sharing": s} for s in ("per_kv_group", "shared", "mean")]
    out += [{"inputs": ["lse", "q_rot"], "granularity": "head"}]
    out += [{"inputs": ["q"], "granularity": "head"}, {"inputs": ["x", "resid"], "input_dim": 3}]
    out += [
        {"input_dim": 5},
        {"rank": 2},
        {"rank": 2, "inputs": ["q"]},
        {"rank": 3, "inputs": ["y"]},
    ]
    out += [{"top_k": {"k": 1}}, {"top_k": {"k": 1}, "granularity": "head"}]
    out += [{"top_k": {"k": 2, "over": "channels"}}]
    out += [{"init": {"bias": 1.5}}, {"compute_dtype": "input"}]
    out += [{"operation": "add", "activation": "silu", "granularity": "head"}]
    return out


def label(gate: dict) -> str:
    return "-".join(f"{k}={v}" for k, v in gate.items()) or "default"


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("axes", one_at_a_time(), ids=label)
def test_axis_value_at_site_equals_reference(site: str, axes: dict) -> None:
    cfg = layer_config([{"site": site, **axes}])
    if is_refused(site, axes):
        with pytest.raises(ValueError, match=r"layer 0: gates\.0"):
            compare(cfg)
    elif axes.get("sharing") == "per_kv_group" and site in ("k", "v", "k_rot"):
        with pytest.warns(UserWarning, match="equals per_head"):
            compare(cfg)
    else:
        compare(cfg)


def is_refused(site: str, axes: dict) -> bool:
    """The combinations that have no meaning, stated apart from `nn.check`."""
    inputs = axes.get("inputs", ["x"])
    one_head = site in ("out", "ffn")
    return (
        ("lse" in inputs and site != "sdpa")
        or ("q_rot" in inputs and site in ("q", "k", "v", "q_rot", "ffn"))
        or ("q" in inputs and site in ("q", "ffn"))
        or (one_head and axes.get("sharing", "per_head") != "per_head")
        or (one_head and axes.get("top_k") == {"k": 1})
    )


@pytest.mark.parametrize("preset", GATE_PRESETS)
def test_preset_equals_reference_with_qk_norm(preset: str) -> None:
    compare(layer_config([preset], qk_norm={"kind": "rmsnorm"}))


def test_every_preset_is_documented() -> None:
    assert set(PRESET_DOCS) == set(GATE_PRESETS)


def test_every_shipped_activation_has_a_plain_formula() -> None:
    z = torch.linspace(-8, 8, 161, dtype=torch.float64)
    for name, formula in REFERENCE_ACTIVATIONS.items():
        torch.testing.assert_close(ACTIVATIONS[name](z), formula(z), atol=1e-12, rtol=1e-12)


def test_a_new_activation_is_one_dict_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ACTIVATIONS, "cosine", lambda z: 0.5 + 0.5 * torch.cos(z))
    compare(layer_config([{"site": "sdpa", "activation": "cosine"}]))


@pytest.mark.parametrize(
    "layer",
    [
        {"norm_placement": "sandwich", "gates": ["sdpa-element", "output"]},
        {"norm": {"kind": "layernorm", "weight": "zero_centred"}, "gates": ["value"]},
        {"gates": ["query", "key", "value", "sdpa-head", "output", "ffn"]},
        {"ffn": {"kind": "swiglu", "ffn_dim": 6}, "gates": ["ffn"]},
        {"gates": [{"kind": "norm", "site": "out"}, {"kind": "norm", "site": "v"}]},
        {"mixer": {"num_heads": 4, "num_kv_heads": 1, "bias": "all", "window_tokens": 2}},
        {"mixer": {"num_heads": 4, "rope": {"pairs": "neighbours", "partial_factor": 0.5}}},
        {"mixer": {"num_heads": 2, "rope": None, "scale": 0.3}},
    ],
    ids=lambda tree: str(sorted(tree.items()))[:60],
)
def test_layer_options_equal_reference(layer: dict) -> None:
    tree = {"ffn": {"kind": "mlp", "ffn_dim": 8}, "mixer": {"num_heads": 4, "num_kv_heads": 2}}
    compare(LayerConfig.parse({**tree, **layer}))


def test_documents_equal_reference() -> None:
    documents = torch.tensor([[0, 0, 1, 1, 1], [3, 3, 3, 3, -1]])
    compare(layer_config(["sdpa-element", "scores-key"]), documents)


@pytest.mark.parametrize("site", ["v", "sdpa", "out"])
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_gate_forced_shut_leaves_no_attention(site: str, backend: str) -> None:
    gate = {"site": site, "init": {"weight": "zeros", "bias": -1e4}}
    cfg = ModelConfig.parse(
        {
            "vocab_size": 11,
            "hidden_dim": DIM,
            "num_layers": 2,
            "layer": {
                "mixer": {"num_heads": 4, "num_kv_heads": 2, "backend": backend},
                "ffn": {"ffn_dim": 8},
                "gates": [gate],
            },
        }
    )
    model = Decoder(cfg).eval()
    init_weights(model, 0)
    outputs: list[torch.Tensor] = []
    for block in model.layers:
        block.attn.register_forward_hook(lambda m, i, o: outputs.append(o))
    tokens = torch.randint(0, 11, (2, 6))
    documents = torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
    model(tokens)
    model(tokens, documents=documents)
    cache = KVCache()
    model(tokens[:, :4], cache=cache)
    model(tokens[:, 4:5], cache=cache)
    model(tokens[:, 5:], cache=cache)
    model.train()(tokens)
    assert len(outputs) == 2 * 6
    assert all(torch.equal(o, torch.zeros_like(o)) for o in outputs)


def test_learned_sink_gate_equals_softmax_with_an_extra_logit() -> None:
    cfg = layer_config(["learned-sink"])
    block = random_block(cfg)
    seen: dict[str, torch.Tensor] = {}
    for name in ("scores",):
        block.attn.backend_taps[name].register_forward_hook(
            lambda m, i, o, n=name: seen.__setitem__(n, o)
        )
    for name in ("v_gated", "sdpa_gated"):
        block.attn.gates.taps[name].register_forward_hook(
            lambda m, i, o, n=name: seen.__setitem__(n, o)
        )
    block(
        torch.randn(1, T, DIM, dtype=torch.float64), Context(AttentionMask(T, T), torch.arange(T))
    )
    sink = -block.attn.gates["sdpa"].bias  # logits = lse + bias, so bias = -sink
    extra = sink.view(1, 4, 1, 1).expand(1, 4, T, 1)
    probs = torch.cat((seen["scores"], extra), dim=-1).softmax(-1)[..., :-1]
    values = seen["v_gated"].repeat_interleave(2, dim=2)
    expected = torch.einsum("bnts,bsnh->btnh", probs, values)
    torch.testing.assert_close(seen["sdpa_gated"], expected, atol=1e-12, rtol=1e-12)
