"""What every recurrent mixer keeps: documents apart, its state in the cache, padding harmless."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest
import torch

from gatelm.nn.attention.masks import PADDING
from gatelm.nn.cache import KVCache
from gatelm.nn.init import init_weights
from gatelm.nn.mixers.config import MixerConfig
from gatelm.nn.model import Decoder, ModelConfig

LAYERS = {
    "delta": {
        "mixer": {"kind": "delta", "num_heads": 4, "num_key_heads": 2, "head_dim": 6},
        "gates": ["sdpa-silu-gate"],
    },
    "delta, gates everywhere": {
        "mixer": {"kind": "delta", "num_heads": 2, "head_dim": 6, "value_dim": 10},
        "gates": ["query", "key", "value", "scores-x", "scores-key", "sdpa-head", "output"],
    },
    "linear": {
        "mixer": {"kind": "linear", "num_heads": 4, "num_kv_heads": 2, "head_dim": 6},
        "gates": ["sdpa-element", "key", "value", "query"],
    },
    "linear, rope": {
        "mixer": {"kind": "linear", "num_heads": 2, "rope": {}, "feature_map": "relu"},
        "gates": ["sdpa-head"],
    },
    "linear, unnormalised": {
        "mixer": {
            "kind": "linear",
            "num_heads": 2,
            "rope": {},
            "feature_map": "identity",
            "normaliser": "none",
            "out_norm": {},
        },
        "gates": ["output"],
    },
    "mamba2": {
        "mixer": {"kind": "mamba2", "num_heads": 4, "num_groups": 2, "state_dim": 6},
        "gates": ["sdpa-silu-gate"],
    },
    "mamba2, gates everywhere": {
        "mixer": {"kind": "mamba2", "num_heads": 4, "state_dim": 6, "head_dim": 5},
        "gates": ["query", "key", "value", "sdpa-head", "output"],
    },
}


def build(name: str, dtype: torch.dtype = torch.float64) -> Decoder:
    """Three layers, softmax attention in the middle."""
    attention = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
    cfg = ModelConfig.parse(
        {
            "vocab_size": 23,
            "hidden_dim": 24,
            "num_layers": 3,
            "layer": {"ffn": {"ffn_dim": 32}, **LAYERS[name]},
            "layer_overrides": [
                {"layers": "1::3", "set": {"mixer": attention, "gates": ["sdpa-element"]}}
            ],
        }
    )
    model = Decoder(cfg)
    init_weights(model, 0)
    with torch.no_grad():  # large weights, so that every mistake shows
        for parameter in model.parameters():
            parameter.mul_(8.0 if parameter.dim() > 1 else 1.0)
    return model.to(dtype).eval()


def tokens(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 23, (batch, length), generator=torch.Generator().manual_seed(seed))


def test_every_mixer_but_softmax_is_tested_here() -> None:
    kinds = {layer["mixer"]["kind"] for layer in LAYERS.values()}  # type: ignore[index]
    union, _ = get_args(MixerConfig)
    assert kinds == {get_args(cfg)[1].tag for cfg in get_args(union)} - {"attention"}


@pytest.mark.parametrize("name", LAYERS)
def test_packed_documents_equal_separate_ones(name: str) -> None:
    model = build(name)
    ids = tokens(2, 150)
    cuts = ((0, 3, 67, 70, 150), (0, 64, 65, 128, 150))
    documents = torch.zeros(2, 150, dtype=torch.long)
    for row, bounds in enumerate(cuts):
        for number, begin in enumerate(bounds[:-1]):
            documents[row, begin:] = number
    packed = model(ids, documents=documents)
    for row, bounds in enumerate(cuts):
        alone = [model(ids[row : row + 1, a:b]) for a, b in itertools.pairwise(bounds)]
        torch.testing.assert_close(packed[row : row + 1], torch.cat(alone, 1), atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("with_documents", [False, True])
def test_prefill_in_chunks_and_decode_equal_full_forward(name: str, with_documents: bool) -> None:
    model = build(name)
    ids = tokens(2, 140)
    documents = None
    if with_documents:
        documents = torch.zeros_like(ids)
        documents[0, 69:], documents[1, :2], documents[1, 137:] = 1, PADDING, 4
    full = model(ids, documents=documents)
    cache, steps = KVCache(), []
    for begin, end in ((0, 70), (70, 71), (71, 137), (137, 138), (138, 139), (139, 140)):
        part = None if documents is None else documents[:, begin:end]
        steps.append(model(ids[:, begin:end], documents=part, cache=cache))
    torch.testing.assert_close(torch.cat(steps, dim=1), full, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", LAYERS)
def test_tokens_without_ids_continue_the_last_document(name: str) -> None:
    model = build(name)
    ids = tokens(1, 12)
    documents = torch.tensor([[0] * 5 + [1] * 4])
    cache = KVCache()
    model(ids[:, :9], documents=documents, cache=cache)
    after = model(ids[:, 9:], cache=cache)
    alone = model(ids[:, 5:])[:, 4:]
    torch.testing.assert_close(after, alone, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", LAYERS)
def test_left_padding_of_any_length_changes_nothing(name: str) -> None:
    model = build(name, torch.float32)
    ids = tokens(1, 75)
    with torch.no_grad():
        alone = model(ids)
        scale = float(alone.abs().max())
        for length in range(71):
            padding = tokens(1, length, seed=length)
            documents = torch.zeros(1, length + 75, dtype=torch.long)
            documents[:, :length] = PADDING
            padded = model(torch.cat((padding, ids), 1), documents=documents)[:, length:]
            torch.testing.assert_close(padded, alone, atol=1e-5 * scale, rtol=0)


@pytest.mark.parametrize("name", LAYERS)
def test_later_tokens_and_other_rows_are_not_seen(name: str) -> None:
    model = build(name)
    ids = tokens(2, 80)
    changed = ids.clone()
    changed[0, 66] = (changed[0, 66] + 1) % 23
    before, after = model(ids), model(changed)
    assert torch.equal(before[1], after[1])
    torch.testing.assert_close(before[0, :66], after[0, :66], atol=1e-9, rtol=0)
    assert (before[0, 66:] - after[0, 66:]).abs().amax(dim=-1).min() > 1e-6


@pytest.mark.parametrize("name", LAYERS)
def test_rows_of_the_cache_come_first(name: str) -> None:
    model = build(name)
    cache = KVCache()
    model(tokens(3, 9), cache=cache)
    assert sorted(cache.states) == [0, 2]
    assert all(t.shape[0] == 3 for states in cache.states.values() for t in states)
