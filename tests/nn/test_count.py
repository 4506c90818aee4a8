"""Counts from the config equal the built module's and torch's counter."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gatelm.config import ConfigError
from gatelm.nn.count import cache_bytes, count, flops_per_token, kv_bytes_per_token
from gatelm.nn.gates.presets import GATE_PRESETS
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.presets import model_preset, model_presets

T = 32


def config(gates: list | None = None, **model: object) -> ModelConfig:
    layer = {
        "mixer": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "backend": "eager"},
        "ffn": {"ffn_dim": 40},
        "gates": gates or [],
    }
    layer.update(model.pop("layer", {}))  # type: ignore[call-overload]
    return ModelConfig.parse(
        {"vocab_size": 50, "hidden_dim": 24, "num_layers": 2, "layer": layer, **model}
    )


VARIANTS = {
    **{name: config([name]) for name in GATE_PRESETS},
    "none": config(),
    "untied": config(head="untied"),
    "learned positions": config(position_embedding={"max_tokens": 64}),
    "sandwich": config(layer={"norm_placement": "sandwich"}),
    "mlp": config(layer={"ffn": {"kind": "mlp", "ffn_dim": 16}}),
    # a width of 10 floats is nothing for the grouped kernel, which torch's counter does not know
    "moe": config(layer={"ffn": {"kind": "moe", "num_experts": 6, "top_k": 2, "ffn_dim": 10}}),
    "moe shared": config(
        layer={
            "ffn": {
                "kind": "moe",
                "num_experts": 5,
                "top_k": 3,
                "ffn_dim": 10,
                "shared": {"ffn_dim": 9},
            },
        }
    ),
    "window": config(
        layer={"mixer": {"num_heads": 4, "window_tokens": 5, "first_tokens": 1, "backend": "eager"}}
    ),
    "blocks": config(
        layer={"mixer": {"num_heads": 4, "sparsity": {"block_tokens": 4}, "backend": "eager"}}
    ),
    "norm gate": config(
        [{"kind": "norm", "site": "sdpa", "norm": {"gate": {"rank": 2}}}],
        layer={"norm": {"gate": {"rank": 3}, "pre_affine": "vector"}},
        final_norm={"gate": {"rank": 5}},
    ),
    "latent": config(
        ["sdpa-element", "value"],
        layer={
            "mixer": {
                "num_heads": 4,
                "head_dim": 8,
                "rope": {"partial_factor": 0.25},
                "projection": {"kind": "latent", "kv_rank": 10, "q_rank": 7, "value_dim": 6},
                "backend": "eager",
            }
        },
    ),
    "latent, full queries": config(
        layer={
            "mixer": {
                "num_heads": 4,
                "rope": None,
                "projection": {"kind": "latent", "kv_rank": 10, "norm": {"weight": "none"}},
                "backend": "eager",
            }
        },
    ),
    "linear": config(
        ["sdpa-head", "key"],
        layer={"mixer": {"kind": "linear", "num_heads": 4, "num_kv_heads": 2, "head_dim": 8}},
    ),
    "linear, rope": config(
        layer={"mixer": {"kind": "linear", "num_heads": 4, "rope": {}, "out_norm": {}}}
    ),
    "linear, unnormalised": config(
        layer={"mixer": {"kind": "linear", "num_heads": 2, "normaliser": "none"}}
    ),
    "mamba2": config(
        ["sdpa-silu-gate", "output"],
        layer={"mixer": {"kind": "mamba2", "num_heads": 4, "num_groups": 2, "state_dim": 6}},
    ),
    "mamba2, bare": config(
        layer={
            "mixer": {
                "kind": "mamba2",
                "num_heads": 2,
                "state_dim": 6,
                "head_dim": 5,
                "bias": "none",
                "out_norm": None,
            }
        }
    ),
    "bias": config(
        layer={"mixer": {"num_heads": 4, "bias": "all", "qk_norm": {}, "backend": "eager"}}
    ),
    "low rank": config([{"site": "sdpa", "rank": 3}, {"site": "out", "inputs": ["y"], "rank": 2}]),
    "query input": config([{"site": "v", "inputs": ["q", "x"], "input_dim": 7}]),
    "shared": config([{"site": "sdpa", "sharing": "shared", "init": {"bias": 1.0}}]),
    "delta": config(["sdpa-silu-gate"], layer={"mixer": {"kind": "delta", "num_heads": 4}}),
    "delta, grouped": config(
        ["query", "value", "output"],
        layer={
            "mixer": {
                "kind": "delta",
                "num_heads": 4,
                "num_key_heads": 2,
                "head_dim": 8,
                "value_dim": 5,
                "conv_tokens": 3,
                "out_norm": None,
            }
        },
    ),
    "per layer": config(
        ["sdpa-head"], layer_overrides=[{"layers": "1:", "set": {"gates": ["value"]}}]
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_parameters_equal_built_module(name: str) -> None:
    cfg = VARIANTS[name]
    with torch.device("meta"):
        model = Decoder(cfg)
    counted = count(cfg)
    assert counted.total == sum(p.numel() for p in model.parameters())
    gates = sum(
        p.numel() for n, p in model.named_parameters() if ".gates." in n and ".norm." not in n
    )
    assert counted.gate == gates


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("training", [False, True])
def test_flops_equal_torch_counter(name: str, training: bool) -> None:
    cfg = VARIANTS[name]
    kind = cfg.layer.mixer.kind
    # experts get rows by numbers, and recurrent mixers ask for their device's precision
    numbers = kind != "attention" or cfg.layer.ffn.kind == "moe"
    with torch.device("cpu" if numbers else "meta"):
        model = Decoder(cfg)
        ids = torch.zeros(1, T, dtype=torch.long)
        if numbers:
            init_weights(model, 0)
        with FlopCounterMode(display=False) as counter:
            logits = model(ids)
            if training:
                logits.sum().backward()
    counted, expected = counter.get_total_flops(), T * flops_per_token(cfg, T, training=training)
    if kind == "delta" or (training and kind != "attention"):
        # no gradient reaches the state before the first token, none comes from that after the last;
        # torch counts no triangular solve
        assert 0.8 * expected < counted <= expected
    else:
        assert counted == expected


def test_published_sizes_of_the_paper() -> None:
    """Sizes in millions of the released dense checkpoints (28 layers)."""
    none = count(model_preset("paper-1.7b-28l"))
    head = count(model_preset("paper-1.7b-28l", "layer.gates=[sdpa-head]"))
    element = count(
        model_preset("paper-1.7b-28l", "layer.gates=[sdpa-element]", "layer.ffn.ffn_dim=5504")
    )
    assert [round(c.total / 1e6, 2) for c in (none, head, element)] == [1720.84, 1721.75, 1728.18]


def test_published_sizes_of_mixtures_of_experts() -> None:
    """15B and 80B (79.67B) parameters; a token of Qwen3-Next uses 3B beside the embedding."""
    paper, qwen = (count(model_preset(name)) for name in ("paper-15b-a2.5b", "qwen3-next-80b-a3b"))
    assert round(paper.total / 1e9, 2) == 15.58
    assert round(qwen.total / 1e9, 2) == 79.67
    assert round((qwen.active - qwen.embedding - qwen.head) / 1e9, 1) == 3.3
    # table 7's shape; the paper's text says 2.54
    assert round(paper.active / 1e9, 2) == 1.99


def test_idle_experts_are_not_active() -> None:
    cfg = VARIANTS["moe"]
    expert = 3 * 24 * 10
    counted = count(cfg)
    assert counted.total - counted.active == 2 * 4 * expert
    assert counted.as_dict()["active"] == counted.active


def test_added_parameters_of_table_1() -> None:
    """Added parameters in millions at 24 layers, width 2048, 32/4 heads of 128 (table 1)."""
    expected = {
        "sdpa-element": 201.33,
        "value": 25.17,
        "key": 25.17,
        "query": 201.33,
        "output": 100.66,
        "sdpa-head": 1.5729,
        "value-head": 0.1966,
        "sdpa-element-shared": 201.33,
        "value-shared": 25.17,
    }
    for preset, millions in expected.items():
        cfg = ModelConfig.parse(
            {
                "vocab_size": 10,
                "hidden_dim": 2048,
                "num_layers": 24,
                "layer": {
                    "mixer": {"num_heads": 32, "num_kv_heads": 4, "head_dim": 128},
                    "ffn": {"ffn_dim": 768},
                    "gates": [preset],
                },
            }
        )
        assert count(cfg).gate / 1e6 == pytest.approx(millions, rel=1e-3)


def test_all_model_presets_parse() -> None:
    assert "paper-1.7b-28l" in model_presets()
    for name in model_presets():
        assert count(model_preset(name)).total > 0


def test_unknown_model_preset_is_named() -> None:
    with pytest.raises(ConfigError, match=r"paper-1\.7b-28l"):
        model_preset("paper-2b")


def test_a_window_bounds_the_cache() -> None:
    cfg = config(layer={"mixer": {"num_heads": 4, "window_tokens": 9, "first_tokens": 2}})
    values = 2 * 4 * 6
    assert [cache_bytes(cfg, n) for n in (3, 10, 500)] == [2 * 2 * values * n for n in (3, 10, 10)]


def test_a_memory_is_cached_whole_and_once() -> None:
    memory = {"hidden_dim": 10, "max_tokens": 7}
    cfg = config(layer={"mixer": {"num_heads": 4, "rope": None, "memory": memory}})
    assert cache_bytes(cfg, 3) == cache_bytes(cfg, 500) == 2 * 2 * 2 * 4 * 6 * 7


def test_kv_bytes() -> None:
    assert kv_bytes_per_token(model_preset("paper-1.7b-28l")) == 2 * 28 * 8 * 128 * 2
