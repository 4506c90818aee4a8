"""States of recurrent layers inside transformers' cache: reordered, repeated, never cut."""

from importlib import util
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

from gatelm.hf.modeling.cache import LibraryCache, StateLayer
from helpers import random_ids

_spec = util.spec_from_file_location("converting", Path(__file__).parents[1] / "converting.py")
assert _spec is not None
assert _spec.loader is not None
models = util.module_from_spec(_spec)
_spec.loader.exec_module(models)


@pytest.fixture(scope="module")
def model():
    return models.inside_transformers(models.hybrid_tree())


def tokens(rows, length, seed=1):
    return random_ids(models.VOCAB, rows, length, seed=seed, special=3)


def test_a_cache_goes_on_where_it_stood(model):
    ids = tokens(2, 12)
    cache = DynamicCache()
    with torch.no_grad():
        model(input_ids=ids[:, :7], cache=cache)
        assert [type(layer) is StateLayer for layer in cache.layers] == [True, False, True]
        assert cache.get_seq_length() == 7
        rest = model(input_ids=ids[:, 7:], cache=cache).logits
        torch.testing.assert_close(rest, model(input_ids=ids).logits[:, 7:], atol=2e-5, rtol=1e-5)


def test_states_follow_rows(model):
    cache = DynamicCache()
    with torch.no_grad():
        model(input_ids=tokens(3, 7), cache=cache)
    before = [layer.states for layer in cache.layers if isinstance(layer, StateLayer)]
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0, 5]))
    after = [layer.states for layer in cache.layers if isinstance(layer, StateLayer)]
    for old, new in zip(before, after, strict=True):
        for a, b in zip(old, new, strict=True):
            assert torch.equal(a[[2, 0]], b)


def test_a_state_is_not_cut_back(model):
    cache = DynamicCache()
    with torch.no_grad():
        model(input_ids=tokens(1, 7), cache=cache)
    with pytest.raises(ValueError, match="cannot be cut back"):
        cache.crop(2)
    cache.reset()
    assert cache.layers[0].get_seq_length() == 0
    assert not LibraryCache(cache, None).states
    assert model._is_stateful
