"""Decoding through a window: the ring keeps exactly what later queries see."""

from __future__ import annotations

import pytest
import torch

from gatelm.nn.attention.masks import PADDING
from gatelm.nn.cache import KVCache
from helpers import decoder, random_ids


def build(window, first=0, *, overrides=(), backend="sdpa"):
    tree = {
        "vocab_size": 17,
        "hidden_dim": 16,
        "num_layers": 3,
        "layer": {
            "mixer": {
                "num_heads": 4,
                "num_kv_heads": 2,
                "window_tokens": window,
                "first_tokens": first,
                "backend": backend,
            },
            "ffn": {"ffn_dim": 16},
            "gates": ["sdpa-head"],
        },
        "layer_overrides": list(overrides),
    }
    return decoder(tree, scale=8.0)


def tokens(rows, length):
    return random_ids(17, rows, length)


def in_chunks(model, ids, sizes, documents=None):
    cache, parts, start = KVCache(), [], 0
    for size in sizes:
        cut = slice(start, start + size)
        known = None if documents is None else documents[:, cut]
        parts.append(model(ids[:, cut], cache=cache, documents=known))
        start += size
    assert start == ids.shape[1]
    return torch.cat(parts, dim=1), cache


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("first", [0, 1, 2, 4])
@pytest.mark.parametrize("window", [1, 2, 5, 40])
@pytest.mark.parametrize("sizes", [[1] * 14, [9, 1, 1, 3], [3, 1, 8, 2]])
def test_decoding_through_a_window_equals_the_whole_forward(window, first, sizes, backend):
    model, ids = build(window, first, backend=backend), tokens(2, 14)
    got, cache = in_chunks(model, ids, sizes)
    torch.testing.assert_close(got, model(ids), atol=1e-10, rtol=1e-10)
    kept = min(14, window - 1) + (first if window - 1 < 14 else 0)
    assert {ring.k.shape[1] for ring in cache.windows.values()} == {kept}
    assert not cache.buffers


@pytest.mark.parametrize("first", [0, 2])
def test_the_cache_does_not_grow_with_the_text(first):
    model = build(4, first)
    cache, held = KVCache(), []
    for start in range(0, 60, 5):
        model(tokens(1, 60)[:, start : start + 5], cache=cache)
        held.append(sum(r.k.untyped_storage().nbytes() for r in cache.windows.values()))
    assert len(set(held)) == 1


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("pads", [0, 1, 4, 9])
def test_left_padding_and_documents_in_a_ring(first, pads):
    """The last document continues; tokens of earlier ones and padding are not seen."""
    model = build(4, first)
    a, b = tokens(1, 7), tokens(1, 18)[:, 7:]
    ids = torch.cat((torch.zeros(1, pads, dtype=torch.long), a, b), dim=1)
    documents = torch.tensor([[PADDING] * pads + [0] * 7 + [1] * 11])
    sizes = [pads + 5, 4, *[1] * 9]
    got, _ = in_chunks(model, ids, sizes, documents)
    torch.testing.assert_close(got[:, pads : pads + 7], model(a), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(got[:, pads + 7 :], model(b), atol=1e-10, rtol=1e-10)


def test_rows_of_different_padding_decode_together():
    model, ids = build(3, 2), tokens(2, 12)
    documents = torch.zeros(2, 12, dtype=torch.long)
    documents[1, :5] = PADDING
    got, _ = in_chunks(model, ids, [7, 1, 1, 1, 1, 1], documents)
    torch.testing.assert_close(got[:1], model(ids[:1]), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(got[1:, 5:], model(ids[1:, 5:]), atol=1e-10, rtol=1e-10)


def test_local_and_global_layers_share_a_cache():
    everywhere = {"mixer.window_tokens": None, "mixer.first_tokens": 0}
    model = build(3, 1, overrides=[{"layers": "2::3", "set": everywhere}])
    ids = tokens(2, 11)
    got, cache = in_chunks(model, ids, [4, 1, 5, 1])
    torch.testing.assert_close(got, model(ids), atol=1e-10, rtol=1e-10)
    assert sorted(cache.windows) == [0, 1]
    assert sorted(cache.buffers) == [2]
