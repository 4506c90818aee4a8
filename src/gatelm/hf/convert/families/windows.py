"""Keys for attention windows that several families share."""

from __future__ import annotations

from typing import Any

from gatelm.nn.model import ModelConfig

WINDOW_KEYS = "sliding_window use_sliding_window max_window_layers layer_types"
"""The keys of Qwen's families."""


def window_keys(cfg: ModelConfig) -> dict[str, Any]:
    """The window, and which layers have it."""
    each = [layer.attention.window_tokens for layer in cfg.layers()]
    found = next((window for window in each if window is not None), None)
    kinds = ["full_attention" if window is None else "sliding_attention" for window in each]
    return {"layer_types": kinds, "sliding_window": found}


def qwen_window_keys(cfg: ModelConfig) -> dict[str, Any]:
    """The same, with the keys that Qwen's families have beside them."""
    tree = window_keys(cfg)
    uses = tree["sliding_window"] is not None
    return {**tree, "use_sliding_window": uses, "max_window_layers": cfg.num_layers}
