"""Cross attention: a second sequence, its padding, its cache; and the encoder that makes it."""

from __future__ import annotations

import math

import pytest
import torch

from gatelm.config import ConfigError
from gatelm.nn.attention.module import use_backend
from gatelm.nn.cache import KVCache
from gatelm.nn.count import count
from gatelm.nn.model import Decoder, ModelConfig
from helpers import decoder, random_ids

WIDTH, MEMORY, MOST = 16, 12, 9


def tree(gates=("sdpa-element",), encoder=None, **mixer):
    cross = {
        "mixer.memory": {"hidden_dim": MEMORY, "max_tokens": MOST},
        "mixer.rope": None,
        "gates": list(gates),
        **{f"mixer.{name}": value for name, value in mixer.items()},
    }
    return {
        "vocab_size": 13,
        "hidden_dim": WIDTH,
        "num_layers": 4,
        "layer": {
            "mixer": {"num_heads": 4, "num_kv_heads": 2, "qk_norm": {}},
            "ffn": {"ffn_dim": 24},
        },
        "layer_overrides": [
            {"layers": "::2", "set": {"ffn": {"kind": "none"}}},
            {"layers": "1::2", "set": cross},
        ],
        "encoder": encoder,
    }


ENCODER = {
    "input": {"kind": "patches", "dim": 5},
    "max_tokens": MOST,
    "hidden_dim": MEMORY,
    "num_layers": 2,
    "layer": {
        "mixer": {"num_heads": 2, "direction": "full", "rope": None},
        "ffn": {"ffn_dim": 16},
    },
}


def build(*args, **kwargs):
    return decoder(tree(*args, **kwargs), scale=8.0)


def tokens(rows, length):
    return random_ids(13, rows, length)


def second(rows, length, width=MEMORY):
    generator = torch.Generator().manual_seed(2)
    return torch.randn(rows, length, width, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_a_layer_against_loops(backend):
    """Keys and values of the memory, the gate from the text."""
    model = build(backend=backend)
    attention = model.layers[1].attn
    attention.gates.taps["sdpa_gated"].register_forward_hook(
        lambda module, args, out: seen.append(out)
    )
    seen, inputs = [], []
    attention.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    states = second(2, 5)
    valid = torch.tensor([[True] * 5, [True, True, False, False, True]])
    model(tokens(2, 3), memory=states, memory_mask=valid)
    x, norm = inputs[0], lambda t: t / (t.square().mean() + 1e-6).sqrt()
    weights = dict(attention.named_parameters())
    for b in range(2):
        chosen = states[b][valid[b]]
        for i in range(3):
            for h in range(4):
                rows, shared = slice(4 * h, 4 * h + 4), slice(4 * (h // 2), 4 * (h // 2) + 4)
                q = norm(weights["qkv.q.weight"][rows] @ x[b, i])
                keys = [norm(weights["qkv.k.weight"][shared] @ m) for m in chosen]
                scores = torch.stack([(q @ k) / math.sqrt(4) for k in keys])
                value = torch.stack([weights["qkv.v.weight"][shared] @ m for m in chosen])
                gate = (weights["gates.sdpa.proj.x.weight"][rows] @ x[b, i]).sigmoid()
                expected = gate * (scores.softmax(0) @ value)
                torch.testing.assert_close(seen[0][b, i, h], expected, atol=1e-9, rtol=1e-9)


def test_backends_agree_forward_and_backward():
    results = []
    for backend in ("sdpa", "eager"):
        model = build()
        use_backend(model, backend)
        states = second(3, 6).requires_grad_()
        valid = torch.arange(6) < torch.tensor([[6], [2], [0]])
        logits = model(tokens(3, 4), memory=states, memory_mask=valid)
        logits.square().mean().backward()
        results.append([logits, states.grad, *(p.grad for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)
    assert torch.isfinite(results[0][1]).all()
    assert (results[0][1][1, 2:] == 0).all()
    assert (results[0][1][2] == 0).all()


def test_padding_of_the_memory_changes_nothing():
    model, ids = build(encoder=ENCODER), tokens(2, 5)
    patches = second(2, 4, 5)
    expected = model(ids, memory=patches)
    for length in range(4, MOST + 1):
        padded = torch.full((2, length, 5), 3.0, dtype=torch.float64)
        padded[:, :4] = patches
        valid = (torch.arange(length) < 4).expand(2, -1)
        got = model(ids, memory=padded, memory_mask=valid)
        torch.testing.assert_close(got, expected, atol=1e-10, rtol=1e-10)


def test_a_row_without_memory_gets_nothing_from_it():
    model, ids = build(), tokens(1, 5)
    none = torch.zeros(1, 3, dtype=torch.bool)
    a = model(ids, memory=second(1, 3), memory_mask=none)
    b = model(ids, memory=3 * second(1, 3) + 1, memory_mask=none)
    torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


@pytest.mark.parametrize("encoder", [None, ENCODER])
def test_prefill_and_decode_equal_the_whole(encoder):
    model, ids = build(encoder=encoder), tokens(2, 9)
    memory = second(2, 4, 5 if encoder else MEMORY)
    valid = torch.tensor([[True] * 4, [True, False, True, False]])
    full = model(ids, memory=memory, memory_mask=valid)
    cache = KVCache()
    steps = [model(ids[:, :4], cache=cache, memory=memory, memory_mask=valid)]
    steps += [model(ids[:, i : i + 1], cache=cache) for i in range(4, 9)]
    torch.testing.assert_close(torch.cat(steps, dim=1), full, atol=1e-10, rtol=1e-10)
    assert cache.cross[1][0].shape == (2, 4, 2, 4)
    with pytest.raises(ValueError, match="give it with the first tokens only"):
        model(ids[:, :1], cache=cache, memory=memory)


def test_the_encoder_reads_both_ways():
    model = build(encoder=ENCODER)
    patches = second(1, 6, 5)
    changed = patches.clone()
    changed[:, -1] += 1.0
    a, b = model.encoder(patches), model.encoder(changed)
    assert ((a - b).abs().amax(dim=-1) > 1e-6).all()


@pytest.mark.parametrize("encoder", [None, ENCODER])
def test_parameters_are_counted(encoder):
    model = build(encoder=encoder)
    assert count(model.cfg).total == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rope": {}}, "set rope to null"),
        ({"window_tokens": 3}, "all of a memory is seen"),
        ({"direction": "full"}, "tokens that it is to predict"),
        ({"gates": ("value",)}, "not tokens of the text"),
        ({"encoder": {**ENCODER, "hidden_dim": 8}}, "say the same"),
    ],
)
def test_what_cannot_work_is_refused(settings, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ModelConfig.parse(tree(**settings), "model")


def test_an_encoder_that_nothing_reads_is_refused():
    plain = {**tree(encoder=ENCODER), "layer_overrides": []}
    with pytest.raises(ConfigError, match="no layer reads it"):
        ModelConfig.parse(plain, "model")


def test_a_missing_or_needless_memory_is_named():
    with pytest.raises(ValueError, match="read a second sequence; give one"):
        build()(tokens(1, 3))
    plain = Decoder(ModelConfig.parse({**tree(), "layer_overrides": []}, "model"))
    with pytest.raises(ValueError, match="no layer reads one"):
        plain(tokens(1, 3), memory=torch.zeros(1, 2, MEMORY))
    with pytest.raises(ValueError, match="its width is 3"):
        build()(tokens(1, 3), memory=second(1, 2, 3))
    with pytest.raises(ValueError, match="max_tokens is 9"):
        build()(tokens(1, 3), memory=second(1, 10))
