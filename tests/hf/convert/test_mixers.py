"""Latents and states generate inside transformers as they do without a cache."""

from importlib import util
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

from helpers import random_ids

_spec = util.spec_from_file_location("converting", Path(__file__).parents[1] / "converting.py")
assert _spec is not None
assert _spec.loader is not None
models = util.module_from_spec(_spec)
_spec.loader.exec_module(models)

VOCAB = 97
LATENT = {"kind": "latent", "kv_rank": 6, "value_dim": 5}
LAYERS = {
    "latent": {
        "mixer": {
            "num_heads": 4,
            "head_dim": 8,
            "rope": {"partial_factor": 0.5},
            "projection": LATENT,
        },
        "gates": ["sdpa-head"],
    },
    "latent without positions": {
        "mixer": {"num_heads": 4, "rope": None, "projection": LATENT},
        "gates": ["sdpa-element"],
    },
    "keys of a latent": {
        "mixer": {"num_heads": 4, "rope": {"partial_factor": 0.5}, "projection": LATENT},
        "gates": ["value", "scores-key"],
    },
    "linear": {"mixer": {"kind": "linear", "num_heads": 4, "rope": {}}, "gates": ["sdpa-head"]},
    "mamba2": {
        "mixer": {"kind": "mamba2", "num_heads": 4, "state_dim": 6},
        "gates": ["sdpa-silu-gate"],
        "ffn": {"kind": "none"},
    },
}


def tree_of(name):
    if name == "hybrid":
        return models.hybrid_tree()
    layer = {"ffn": {"ffn_dim": 32}, **LAYERS[name]}
    return {"vocab_size": VOCAB, "hidden_dim": 32, "num_layers": 2, "layer": layer}


@pytest.fixture(scope="module", params=[*LAYERS, "hybrid"])
def model(request):
    return models.inside_transformers(tree_of(request.param))


def tokens(rows, length, seed=1):
    return random_ids(VOCAB, rows, length, seed=seed, special=3)


def greedy(model, ids, **settings):
    with torch.no_grad():
        return model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=-1, **settings)


@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_a_cache_equals_generation_without(model, beams):
    ids = tokens(2, 9)
    cached, plain = (greedy(model, ids, num_beams=beams, use_cache=use) for use in (True, False))
    assert torch.equal(cached, plain)


def test_padded_rows_generate_what_they_generate_alone(model):
    long, short = tokens(1, 9), tokens(1, 4, seed=2)
    padded = torch.cat((long, torch.cat((torch.zeros(1, 5, dtype=torch.long), short), 1)))
    mask = torch.ones_like(padded)
    mask[1, :5] = 0
    both = greedy(model, padded, attention_mask=mask)[:, 9:]
    assert torch.equal(both[:1], greedy(model, long)[:, 9:])
    assert torch.equal(both[1:], greedy(model, short)[:, 4:])


def test_a_cache_goes_on_where_it_stood(model):
    ids, cache = tokens(2, 12), DynamicCache()
    with torch.no_grad():
        model(input_ids=ids[:, :7], cache=cache)
        assert cache.get_seq_length() == 7
        rest = model(input_ids=ids[:, 7:], cache=cache).logits
        torch.testing.assert_close(rest, model(input_ids=ids).logits[:, 7:], atol=2e-5, rtol=1e-5)
