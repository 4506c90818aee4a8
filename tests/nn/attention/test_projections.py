"""Latent attention against its definition, the cache of latents, and transformers' DeepSeek-V3."""

from __future__ import annotations

import pytest
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3RotaryEmbedding,
)

from gatelm.config import ConfigError
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.attention.masks import PADDING, AttentionMask
from gatelm.nn.attention.module import Attention
from gatelm.nn.cache import KVCache
from gatelm.nn.count import cache_bytes, count, kv_bytes_per_token
from gatelm.nn.forward_state import Context
from gatelm.nn.model import Decoder, ModelConfig
from helpers import decoder, random_ids

LATENT = {"kind": "latent", "kv_rank": 10}
PROJECTIONS = {
    "plain": LATENT,
    "queries too": {**LATENT, "q_rank": 7, "value_dim": 6},
    "zero-centred": {**LATENT, "norm": {"weight": "zero_centred"}, "value_dim": 12},
}
ROPE = {"partial_factor": 0.5}


def config(projection: dict | None = None, gates: tuple = (), **mixer: object) -> ModelConfig:
    return ModelConfig.parse(
        {
            "vocab_size": 23,
            "hidden_dim": 24,
            "num_layers": 2,
            "layer": {
                "mixer": {
                    "num_heads": 4,
                    "head_dim": 8,
                    "rope": ROPE,
                    "projection": projection or LATENT,
                    **mixer,
                },
                "ffn": {"ffn_dim": 32},
                "gates": list(gates),
            },
        }
    )


def build(
    projection: dict | None = None,
    gates: tuple = (),
    dtype: torch.dtype = torch.float64,
    **mixer: object,
) -> Decoder:
    return decoder(config(projection, gates, **mixer), scale=8.0, dtype=dtype)


def tokens(batch: int, length: int) -> torch.Tensor:
    return random_ids(23, batch, length)


def naive(attn: Attention, x: torch.Tensor) -> torch.Tensor:
    """Latent attention of one row, a head and a query at a time, without gates."""
    cfg, state = attn.cfg, dict(attn.named_parameters())
    assert cfg.projection is not None
    rotary_dim = 0 if cfg.rope is None else 4

    def normed(y: torch.Tensor, name: str) -> torch.Tensor:
        assert cfg.projection is not None
        weight = state[f"qkv.{name}.weight"]
        weight = 1 + weight if cfg.projection.norm.weight == "zero_centred" else weight
        return y / torch.sqrt((y * y).mean(-1, keepdim=True) + 1e-6) * weight

    def turned(y: torch.Tensor, position: int) -> torch.Tensor:
        if not rotary_dim:
            return y
        # the module computes angles in float32
        angles = torch.tensor([1.0, 10_000.0**-0.5]) * float(position)
        turn = torch.complex(torch.cos(angles), torch.sin(angles))
        pairs = torch.complex(y[:2], y[2:4]) * turn
        return torch.cat((pairs.real, pairs.imag, y[4:]))

    q_in = x
    if cfg.projection.q_rank is not None:
        q_in = normed(x @ state["qkv.q_down.weight"].T, "q_norm")
    latent = normed(x @ state["qkv.kv_down.weight"].T, "kv_norm")
    shared = x @ state["qkv.k_turning.weight"].T if rotary_dim else x[:, :0]
    q, k = q_in @ state["qkv.q.weight"].T, latent @ state["qkv.k.weight"].T
    v = latent @ state["qkv.v.weight"].T
    own, width = 8 - rotary_dim, v.shape[1] // 4
    rows = []
    for i in range(x.shape[0]):
        heads = []
        for h in range(4):
            query = turned(q[i, 8 * h : 8 * h + 8], i)
            scores = []
            for j in range(i + 1):
                key = torch.cat((shared[j], k[j, own * h : own * h + own]))
                scores.append(query @ turned(key, j) / 8**0.5)
            weights = torch.exp(torch.stack(scores))
            values = v[: i + 1, width * h : width * h + width]
            heads.append((weights / weights.sum()) @ values)
        rows.append(torch.cat(heads))
    return torch.stack(rows) @ state["o_proj.weight"].T


@pytest.mark.parametrize("name", PROJECTIONS)
@pytest.mark.parametrize("rope", [ROPE, None])
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_latent_attention_equals_the_naive_twin(name: str, rope: dict | None, backend: str) -> None:
    attn = build(PROJECTIONS[name], rope=rope, backend=backend).layers[0].attn
    assert isinstance(attn, Attention)
    x = torch.randn(1, 7, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (x / 4).requires_grad_()
    ours = attn(x, x, Context(AttentionMask(7, 7), torch.arange(7)))[0]
    theirs = naive(attn, x[0])
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)
    leaves = [x, *attn.parameters()]
    for a, b in zip(
        torch.autograd.grad(ours.square().sum(), leaves),
        torch.autograd.grad(theirs.square().sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)


GATES = {
    "none": (),
    "output side": ("sdpa-element", "output"),
    "heads": ("sdpa-head", "scores-q"),
    "keys": ("key",),
    "values": ("value",),
    "turned keys": ("scores-key",),
}


@pytest.mark.parametrize("gates", GATES.values(), ids=GATES)
@pytest.mark.parametrize("rope", [ROPE, None])
@pytest.mark.parametrize("window", [None, 3])
def test_prefill_and_decode_equal_full_forward(
    gates: tuple, rope: dict | None, window: int | None
) -> None:
    model = build(PROJECTIONS["queries too"], gates, rope=rope, window_tokens=window)
    ids = tokens(2, 9)
    cache = KVCache()
    steps = [model(ids[:, :4], cache=cache), model(ids[:, 4:7], cache=cache)]
    steps += [model(ids[:, i : i + 1], cache=cache) for i in (7, 8)]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(ids), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("gates", GATES.values(), ids=GATES)
def test_bytes_of_the_cache_are_those_of_the_config(gates: tuple) -> None:
    with torch.no_grad():
        model = build(PROJECTIONS["queries too"], gates, torch.float32)
        cache = KVCache()
        model(tokens(1, 9), cache=cache)
    held = sum(b.tokens.numel() for pair in cache.buffers.values() for b in pair)
    assert cache_bytes(model.cfg, 9, 4) == 4 * held
    per_layer = 4 * (8 + 6) if {"key", "value", "scores-key"} & set(gates) else 10 + 4
    assert kv_bytes_per_token(model.cfg, 2) == 2 * 2 * per_layer


def test_packed_documents_and_padding() -> None:
    model = build(PROJECTIONS["queries too"], ("sdpa-head",))
    a, b = tokens(1, 5), tokens(1, 9)[:, 5:]
    documents = torch.tensor([[PADDING] * 3 + [0] * 5 + [1] * 4])
    packed = model(torch.cat((a[:, :3], a, b), dim=1), documents=documents)[:, 3:]
    torch.testing.assert_close(packed, torch.cat((model(a), model(b)), dim=1), atol=1e-10, rtol=0)


def test_left_padding_of_any_length_changes_nothing() -> None:
    model = build(PROJECTIONS["queries too"], ("sdpa-element",))
    ids = tokens(1, 6)
    with torch.no_grad():
        alone = model(ids)
        for length in range(71):
            documents = torch.tensor([[PADDING] * length + [0] * 6])
            padded = model(torch.cat((tokens(1, length), ids), 1), documents=documents)
            torch.testing.assert_close(padded[:, length:], alone, atol=1e-9, rtol=0)


def test_a_model_of_the_published_shape_caches_a_seventieth() -> None:
    """DeepSeek-V3: 61 layers, 128 heads of 192 (64 turn) and 128, latents of 512 and 1,536."""
    mixer = {"num_heads": 128, "head_dim": 192, "rope": {"partial_factor": 1 / 3}}
    projection = {"kind": "latent", "kv_rank": 512, "q_rank": 1536, "value_dim": 128}
    layer = {"mixer": {**mixer, "projection": projection}, "ffn": {"ffn_dim": 18_432}}
    cfg = {"vocab_size": 129_280, "hidden_dim": 7168, "num_layers": 61, "layer": layer}
    latent = ModelConfig.parse(cfg)
    assert kv_bytes_per_token(latent) == 2 * 61 * 576
    with_keys = ModelConfig.parse({**cfg, "layer": {**layer, "gates": ["value"]}})
    assert kv_bytes_per_token(with_keys) == 2 * 61 * 128 * 320
    assert count(latent).attention == 61 * 187_105_280


LIBRARY = {
    "hidden_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 10,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
    "num_hidden_layers": 1,
}


@pytest.mark.parametrize("q_rank", [None, 7])
@pytest.mark.parametrize("interleaved", [True, False])
@torch.no_grad()
def test_attention_equals_deepseek_v3(q_rank: int | None, interleaved: bool) -> None:
    library = DeepseekV3Config(**LIBRARY, q_lora_rank=q_rank, rope_interleave=interleaved)
    library._attn_implementation = "eager"
    theirs = DeepseekV3Attention(library, 0).eval()
    g = torch.Generator().manual_seed(0)
    for parameter in theirs.parameters():
        parameter.normal_(0, 0.5, generator=g)
    cfg = AttentionConfig.parse(
        {
            "num_heads": 4,
            "head_dim": 10,
            "rope": {
                "partial_factor": 0.4,
                "pairs": "neighbours" if interleaved else "halves",
            },
            "projection": {"kind": "latent", "kv_rank": 10, "value_dim": 5, "q_rank": q_rank},
        }
    )
    ours = Attention(cfg, 24, 0).eval()
    ours.load_state_dict(from_library(theirs))
    x = torch.randn(2, 11, 24, generator=g)
    positions = torch.arange(11)
    causal = torch.full((11, 11), float("-inf")).triu(1)[None, None]
    angles = DeepseekV3RotaryEmbedding(library)(x, positions[None])
    expected, _ = theirs(x, angles, causal)
    mine = ours(x, x, Context(AttentionMask(11, 11), positions))
    torch.testing.assert_close(mine, expected, atol=1e-5, rtol=1e-5)


def from_library(theirs: DeepseekV3Attention) -> dict[str, torch.Tensor]:
    """The library's heads hold the channels that turn last, and a head's key and value in a row."""

    def turning_first(weight: torch.Tensor) -> torch.Tensor:
        heads = weight.unflatten(0, (4, 10))
        return torch.cat((heads[:, 6:], heads[:, :6]), dim=1).flatten(0, 1)

    keys_and_values = theirs.kv_b_proj.weight.unflatten(0, (4, 11))
    down = theirs.kv_a_proj_with_mqa.weight
    out = {
        "qkv.kv_down.weight": down[:10],
        "qkv.k_turning.weight": down[10:],
        "qkv.kv_norm.weight": theirs.kv_a_layernorm.weight,
        "qkv.k.weight": keys_and_values[:, :6].flatten(0, 1),
        "qkv.v.weight": keys_and_values[:, 6:].flatten(0, 1),
        "o_proj.weight": theirs.o_proj.weight,
    }
    if theirs.q_proj is not None:
        return {**out, "qkv.q.weight": turning_first(theirs.q_proj.weight)}
    assert theirs.q_a_proj is not None
    assert theirs.q_a_layernorm is not None
    assert theirs.q_b_proj is not None
    return {
        **out,
        "qkv.q_down.weight": theirs.q_a_proj.weight,
        "qkv.q_norm.weight": theirs.q_a_layernorm.weight,
        "qkv.q.weight": turning_first(theirs.q_b_proj.weight),
    }


@pytest.mark.parametrize(
    ("mixer", "sentence"),
    [
        ({"num_kv_heads": 2}, "every head has keys of its own"),
        ({"qk_norm": {}}, "set qk_norm to null"),
        ({"bias": "qkv"}, "a latent projection has none"),
        ({"rope": {}}, "no key can come from the latent"),
        ({"projection": {"kind": "latent"}}, "kv_rank: this key is required"),
        ({"projection": {"kind": "latent", "kv_rank": 4, "rank": 2}}, "unknown key 'rank'"),
    ],
)
def test_what_cannot_work_is_refused(mixer: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        config(**mixer)


def test_configs_without_a_projection_keep_their_hash() -> None:
    plain = AttentionConfig(num_heads=4)
    assert plain.content_hash() == "e3f756cbb4df"
    assert "projection" in plain.tree()
