"""The decoder's config, initial weights and errors."""

from __future__ import annotations

import pytest
import torch

from gatelm.config import ConfigError
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig

TREE = {
    "vocab_size": 40,
    "hidden_dim": 32,
    "num_layers": 4,
    "layer": {"mixer": {"num_heads": 4}, "ffn": {"ffn_dim": 64}},
}


def config(**changes: object) -> ModelConfig:
    return ModelConfig.parse({**TREE, **changes})


def with_layer(**changes: object) -> ModelConfig:
    return config(layer={**TREE["layer"], **changes})


def test_gated_and_ungated_models_share_their_other_weights() -> None:
    plain, gated = Decoder(config()), Decoder(with_layer(gates=["sdpa-element", "value"]))
    init_weights(plain, 3)
    init_weights(gated, 3)
    theirs = dict(gated.named_parameters())
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, theirs[name]), name


def test_initial_weights_depend_on_the_seed_and_nothing_else() -> None:
    models = [Decoder(config()) for _ in range(3)]
    for model, seed in zip(models, (0, 0, 1), strict=True):
        torch.manual_seed(seed + 100)
        init_weights(model, seed)
    a, b, c = (m.layers[1].ffn.up_proj.weight for m in models)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.mark.parametrize(
    ("init", "std"),
    [
        ({"weight": "zeros"}, 0.0),
        ({"std": 0.1}, 0.1),
        ({"weight": "xavier"}, (2 / (256 + 256)) ** 0.5),
        ({"weight": "kaiming"}, (2 / 256) ** 0.5),
    ],
)
def test_gate_init(init: dict, std: float) -> None:
    gate = {"site": "sdpa", "init": {**init, "bias": 0.7}}
    layer = {"mixer": {"num_heads": 4}, "ffn": {"ffn_dim": 8}, "gates": [gate]}
    model = Decoder(config(hidden_dim=256, num_layers=1, layer=layer))
    init_weights(model, 0)
    module = model.layers[0].attn.gates["sdpa"]
    assert module.proj["x"].weight.std().item() == pytest.approx(std, rel=0.02)
    assert torch.equal(module.bias, torch.full_like(module.bias, 0.7))


def test_low_rank_gate_starts_with_the_full_ones_logit_variance() -> None:
    layer = {"mixer": {"num_heads": 4}, "ffn": {"ffn_dim": 8}}
    spread = []
    for rank in (None, 16):
        gates = [{"site": "sdpa", "rank": rank}]
        model = Decoder(config(hidden_dim=256, num_layers=1, layer={**layer, "gates": gates}))
        init_weights(model, 0)
        x = torch.randn(1, 500, 256)
        spread.append(model.layers[0].attn.gates["sdpa"].proj["x"](x).std().item())
    assert spread[1] == pytest.approx(spread[0], rel=0.1)


def test_layer_overrides() -> None:
    cfg = config(
        layer_overrides=[
            {"layers": "::2", "set": {"gates": ["sdpa-head"], "mixer.window_tokens": 8}},
            {"layers": [3], "set": {"ffn": {"kind": "mlp", "ffn_dim": 16}}},
        ]
    )
    layers = cfg.layers()
    assert [len(layer.gates) for layer in layers] == [1, 0, 1, 0]
    assert [layer.mixer.window_tokens for layer in layers] == [8, None, 8, None]
    assert [layer.ffn.kind for layer in layers] == ["swiglu", "swiglu", "swiglu", "mlp"]
    Decoder(cfg)(torch.zeros(1, 3, dtype=torch.long))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"layer": {"mixer": {"num_heads": 5}, "ffn": {"ffn_dim": 8}}}, "not a multiple of 5"),
        (
            {"layer": {"mixer": {"num_heads": 4, "num_kv_heads": 3}, "ffn": {"ffn_dim": 8}}},
            "use a divisor of 4",
        ),
        (
            {"layer": {"mixer": {"num_heads": 4, "head_dim": 7}, "ffn": {"ffn_dim": 8}}},
            "even number",
        ),
        ({"layer_overrides": [{"layers": "a:b", "set": {}}]}, "expected a slice"),
        ({"layer_overrides": [{"layers": [9], "set": {}}]}, "there is no layer 9"),
        (
            {"layer_overrides": [{"layers": "1:", "set": {"gate": []}}]},
            "unknown key 'gate'; did you mean 'gates'",
        ),
        ({"hiden_dim": 3}, "unknown key 'hiden_dim'; did you mean 'hidden_dim'"),
    ],
)
def test_mistakes_are_one_sentence(change: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        config(**change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        ({"gates": ["sdpa-head", "sdpa-element"]}, "one per site"),
        ({"gates": [{"site": "sdpa", "inputs": []}]}, "inputs: empty"),
        ({"gates": [{"site": "sdpa", "inputs": ["x", "x"]}]}, "twice"),
        ({"gates": [{"site": "out", "inputs": ["lse"]}]}, "goes with site sdpa"),
        ({"gates": [{"site": "v", "input_dim": 99}]}, "99 of 32"),
        ({"gates": [{"site": "v", "inputs": ["y"], "input_dim": 4}]}, "only x and resid"),
        ({"gates": [{"site": "v", "inputs": ["const"], "rank": 4}]}, "has a projection"),
        ({"gates": [{"site": "v", "top_k": {"k": 4}}]}, "keeps everything"),
        (
            {
                "gates": [
                    {"site": "v", "granularity": "head", "top_k": {"k": 1, "over": "channels"}}
                ]
            },
            "granularity element",
        ),
        (
            {"gates": [{"site": "out", "granularity": "head"}], "norm_placement": "sandwich"},
            "undone by the sandwich norm",
        ),
        (
            {
                "mixer": {"num_heads": 4, "qk_norm": {}},
                "gates": [{"site": "k", "granularity": "head"}],
            },
            "use site k_rot",
        ),
    ],
)
def test_gates_that_cannot_work_are_refused(layer: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        with_layer(**layer)


def test_too_many_tokens_for_learned_positions() -> None:
    model = Decoder(config(position_embedding={"max_tokens": 4}))
    with pytest.raises(ValueError, match="max_tokens is 4"):
        model(torch.zeros(1, 5, dtype=torch.long))


def test_a_model_needs_a_vocabulary() -> None:
    with pytest.raises(ConfigError, match=r"model\.vocab_size"):
        Decoder(config(vocab_size=None))
