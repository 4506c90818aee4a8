"""Linear attention against its naive twin, forward and gradients, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gatelm.config import ConfigError
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.block import Block, LayerConfig
from gatelm.nn.check import check_layer
from gatelm.nn.forward_state import Context
from gatelm.nn.mixers.linear import FEATURE_MAPS
from gatelm.testing.linear import NAIVE_FEATURE_MAPS, reference_mixer

D = 12


def layer(gates: list, **mixer: object) -> LayerConfig:
    tree = {"mixer": {"kind": "linear", "num_heads": 4, **mixer}, "ffn": {"ffn_dim": 8}}
    cfg = LayerConfig.parse({**tree, "gates": gates})
    check_layer(cfg, D, 0)
    return cfg


CASES = {
    **{name: layer([], feature_map=name) for name in FEATURE_MAPS if name != "identity"},
    "unnormalised": layer(["sdpa-head"], feature_map="identity", normaliser="none"),
    "normed": layer(["sdpa-element"], num_kv_heads=2, normaliser="none", out_norm={}, head_dim=6),
    "rope": layer(["output"], num_kv_heads=2, head_dim=8, rope={"partial_factor": 0.5}),
    "rope, neighbours": layer(
        [], head_dim=4, rope={"pairs": "neighbours"}, normaliser="none", feature_map="identity"
    ),
    "all sites": layer(
        [
            {"site": "q", "inputs": ["resid"]},
            "key",
            "value-head",
            {"site": "sdpa", "inputs": ["q", "const"], "sharing": "per_kv_group"},
            {"site": "out", "inputs": ["q", "y"], "rank": 2},
        ],
        num_kv_heads=2,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("with_documents", [False, True])
def test_mixer_equals_the_naive_twin(
    name: str, with_documents: bool, assert_equals_twin: Callable[..., None]
) -> None:
    assert_equals_twin(CASES[name], D, reference_mixer, with_documents)


def test_weights_of_a_query_sum_to_one() -> None:
    cfg = layer([], num_heads=1)
    attn = Block(cfg, D, 0).double().attn
    with torch.no_grad():
        for parameter in attn.parameters():
            parameter.normal_()
        attn.v_proj.weight.copy_(torch.eye(D))
        attn.o_proj.weight.copy_(torch.eye(D))
        x = torch.randn(1, 20, D, dtype=torch.float64)
        x[..., 0] = 3.0
        y = attn(x, x, Context(AttentionMask(20, 20), torch.arange(20)))
    torch.testing.assert_close(y[..., 0], torch.full_like(y[..., 0], 3.0), atol=1e-4, rtol=0)


def test_every_feature_map_has_a_naive_twin() -> None:
    assert NAIVE_FEATURE_MAPS.keys() == FEATURE_MAPS.keys()


@pytest.mark.parametrize(
    ("mixer", "gates", "sentence"),
    [
        ({"num_heads": 5}, [], "not a multiple of 5 heads"),
        ({"num_kv_heads": 3}, [], "cannot be divided among 3"),
        ({"feature_map": "identity"}, [], "set normaliser to none"),
        ({"feature_map": "sofmax"}, [], "did you mean 'softmax'"),
        ({"rope": {"partial_factor": 1.0}}, [], "cannot turn in pairs"),
        ({}, ["learned-sink"], "lse is of softmax attention"),
        ({}, ["scores-key"], "has no 'k_rot'; use q or k or v or sdpa or out or ffn"),
    ],
)
def test_what_cannot_work_is_refused(mixer: dict, gates: list, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        layer(gates, **mixer)
