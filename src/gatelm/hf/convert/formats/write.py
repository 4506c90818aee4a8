"""A `ModelConfig` in a format's native form (see `fold`) as that format's config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gatelm.hf.convert.formats.layers import ACTIVATIONS
from gatelm.hf.convert.formats.pieces import Inert, Piece
from gatelm.hf.convert.formats.qwen import (
    activation_of,
    ffn_dim,
    is_one_expert,
    is_sparse,
    write_experts,
    write_hybrid,
)
from gatelm.hf.convert.formats.read import PAPER_KEYS
from gatelm.hf.convert.formats.rope import write_rope
from gatelm.hf.convert.formats.rules import Format
from gatelm.hf.convert.formats.tensors import ONE_EXPERT, pieces
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.block import LayerConfig
from gatelm.nn.model import ModelConfig
from gatelm.nn.positions.rope import RopeConfig

CARRIED = ("max_position_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")
"""Keys without a place in a `ModelConfig` that are passed on from config to config."""


def write_config(
    cfg: ModelConfig, fmt: Format, carried: Mapping[str, Any], dtype: str
) -> dict[str, Any]:
    """The content of config.json; keys in the alphabet's order, so that it is always the same."""
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
    tree |= _WRITERS[fmt.name](cfg, layer)
    return dict(sorted(tree.items()))


def format_pieces(cfg: ModelConfig, fmt: Format, filled: Any, layout: str | None) -> list[Piece]:
    """The map of tensors. filled: the config with all keys (of transformers, or a namespace)."""
    if not is_one_expert(filled, fmt):
        return pieces(cfg, fmt.names, layout=layout, delta=fmt.delta)
    sparse = [index for index in range(cfg.num_layers) if is_sparse(filled, fmt, index)]
    found = pieces(
        cfg,
        fmt.names,
        layout=layout,
        delta=fmt.delta,
        renamed=lambda index: ONE_EXPERT if index in sparse else {},
    )
    dim, width = cfg.hidden_dim, filled.shared_expert_intermediate_size
    chosen = "one expert is always chosen, with weight 1"
    for index in sparse:
        mlp = f"model.layers.{index}.mlp"
        found += [
            Inert(f"{mlp}.gate.weight", (1, dim), chosen),
            Inert(f"{mlp}.shared_expert.gate_proj.weight", (width, dim), "its output is zero"),
            Inert(f"{mlp}.shared_expert.up_proj.weight", (width, dim), "its output is zero"),
            Inert(f"{mlp}.shared_expert.down_proj.weight", (dim, width)),
            Inert(f"{mlp}.shared_expert_gate.weight", (1, dim), "it scales zero"),
        ]
    return found


def rope_keys(cfg: ModelConfig, fmt: Format) -> dict[str, Any]:
    """The keys for the rotary positions."""
    for layer in cfg.layers():
        if isinstance(layer.mixer, AttentionConfig) and layer.mixer.rope is not None:
            return write_rope(layer.mixer.rope, layer.mixer.width(cfg.hidden_dim), fmt)
    return write_rope(RopeConfig(), 2, fmt)


def _windows(cfg: ModelConfig) -> dict[str, Any]:
    windows = [layer.attention.window_tokens for layer in cfg.layers()]
    found = next((w for w in windows if w is not None), None)
    kinds = ["full_attention" if w is None else "sliding_attention" for w in windows]
    return {"layer_types": kinds, "sliding_window": found}


def _qwen_windows(cfg: ModelConfig) -> dict[str, Any]:
    tree = _windows(cfg)
    uses = tree["sliding_window"] is not None
    return {**tree, "use_sliding_window": uses, "max_window_layers": cfg.num_layers}


def _bias(layer: LayerConfig) -> dict[str, Any]:
    return {"attention_bias": layer.attention.bias == "all"}


def _qwen3_moe(cfg: ModelConfig, layer: LayerConfig) -> dict[str, Any]:
    window = layer.attention.window_tokens
    windows = {"sliding_window": window, "use_sliding_window": window is not None}
    return {**_bias(layer), **write_experts(cfg), **windows, "max_window_layers": cfg.num_layers}


def _paper(cfg: ModelConfig, layer: LayerConfig) -> dict[str, Any]:
    form = layer.gates[0].granularity if layer.gates else None  # pyright: ignore[reportAttributeAccessIssue]
    head, element = PAPER_KEYS
    return {
        head: form == "head",
        element: form == "element",
        "attention_bias": False,
        "qkv_bias": False,
        "use_qk_norm": True,
        "use_sliding_window": False,
    }


def _lfm3(cfg: ModelConfig, layer: LayerConfig) -> dict[str, Any]:
    norm_eps = {"norm_eps": layer.norm.eps}
    gate = {"use_attention_gate": bool(layer.gates), "use_sandwich_norm": True}
    return {**_windows(cfg), **_bias(layer), **norm_eps, **gate}


def _afmoe(cfg: ModelConfig, layer: LayerConfig) -> dict[str, Any]:
    dense = {"num_dense_layers": cfg.num_layers, "mup_enabled": False}
    return {**_windows(cfg), **_bias(layer), **dense}


_WRITERS: Mapping[str, Callable[[ModelConfig, LayerConfig], dict[str, Any]]] = {
    "qwen3_5_text": lambda cfg, layer: write_hybrid(cfg),
    "qwen3_5_moe_text": lambda cfg, layer: {**write_hybrid(cfg), **write_experts(cfg)},
    "qwen3_next": lambda cfg, layer: {**write_hybrid(cfg), **write_experts(cfg)},
    "qwen3_moe": _qwen3_moe,
    "paper": _paper,
    "llama": lambda cfg, layer: {**_bias(layer), "mlp_bias": False},
    "mistral": lambda cfg, layer: {"sliding_window": layer.attention.window_tokens},
    "qwen2": lambda cfg, layer: _qwen_windows(cfg),
    "qwen3": lambda cfg, layer: {**_qwen_windows(cfg), **_bias(layer)},
    "afmoe": _afmoe,
    "lfm3": _lfm3,
}
