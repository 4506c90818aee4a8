"""A `ModelConfig` in a format's native form (see `fold`) as that format's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gatelm.hf.convert.formats.format import Format
from gatelm.hf.convert.formats.layers import ACTIVATIONS, activation_of, ffn_dim
from gatelm.hf.convert.formats.rope import write_rope
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.model import ModelConfig
from gatelm.nn.positions.rope import RopeConfig

CARRIED = ("max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
"""Keys without a place in a `ModelConfig` that are passed on from config to config."""


def write_config(
    cfg: ModelConfig, fmt: Format, carried: Mapping[str, Any], dtype: str
) -> dict[str, Any]:
    """Make the content of config.json, its keys in alphabetical order.

    carried: values of `CARRIED` to write. dtype: the name of the weights' dtype.
    """
    layer = next(one for one in cfg.layers() if isinstance(one.mixer, AttentionConfig))
    mixer = layer.attention
    assert cfg.vocab_size is not None
    activation = {ours: theirs for theirs, ours in ACTIVATIONS.items() if theirs != "swish"}
    tree: dict[str, Any] = {
        "architectures": [fmt.architecture],
        "attention_dropout": mixer.dropout,
        "dtype": dtype,
        "head_dim": mixer.width(cfg.hidden_dim),
        "hidden_act": activation[activation_of(layer)],
        "hidden_size": cfg.hidden_dim,
        "initializer_range": cfg.init.std,
        "intermediate_size": ffn_dim(cfg),
        "model_type": fmt.model_type,
        "num_attention_heads": mixer.num_heads,
        "num_hidden_layers": cfg.num_layers,
        "num_key_value_heads": mixer.kv_heads,
        "rms_norm_eps": layer.norm.eps,
        "tie_word_embeddings": cfg.head == "tied",
        "use_cache": True,
        "vocab_size": cfg.vocab_size,
        **{key: carried[key] for key in CARRIED if key in carried},
    }
    tree |= rope_keys(cfg, fmt)
    if fmt.has_key("attention_bias"):
        tree["attention_bias"] = mixer.bias == "all"
    tree |= _window_keys(cfg, fmt)
    tree |= fmt.config_keys(cfg)
    return dict(sorted(tree.items()))


def rope_keys(cfg: ModelConfig, fmt: Format) -> dict[str, Any]:
    """Return the keys for the rotary positions."""
    for layer in cfg.layers():
        if isinstance(layer.mixer, AttentionConfig) and layer.mixer.rope is not None:
            return write_rope(layer.mixer.rope, layer.mixer.width(cfg.hidden_dim), fmt)
    return write_rope(RopeConfig(), 2, fmt)


def _window_keys(cfg: ModelConfig, fmt: Format) -> dict[str, Any]:
    """Return the keys for the attention windows."""
    if fmt.windows == "never":
        return {}
    windows = [layer.attention.window_tokens for layer in cfg.layers()]
    found = next((window for window in windows if window is not None), None)
    tree: dict[str, Any] = {"sliding_window": found}
    if fmt.windows == "by layer":
        kinds = ("full_attention", "sliding_attention")
        tree["layer_types"] = [kinds[window is not None] for window in windows]
    if fmt.has_key("max_window_layers"):
        tree |= {"use_sliding_window": found is not None, "max_window_layers": cfg.num_layers}
    return tree
