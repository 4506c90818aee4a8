"""Qwen3: QK-norm, windows in some layers."""

from __future__ import annotations

from typing import Any

from gatelm.hf.convert.families.windows import WINDOW_KEYS, qwen_window_keys
from gatelm.hf.convert.formats.format import Format
from gatelm.nn.block import LayerConfig
from gatelm.nn.model import ModelConfig


class Qwen3Format(Format):
    """Qwen3, dense."""

    name = model_type = "qwen3"
    label = "Qwen3"
    architecture = "Qwen3ForCausalLM"
    keys = f"{WINDOW_KEYS} attention_bias"
    notes = "biases in all attention projections or in none; windows by layer"
    biases = ("none", "all")
    windows = "by layer"

    def config_keys(self, cfg: ModelConfig, layer: LayerConfig) -> dict[str, Any]:
        """The windows and the biases."""
        return {**qwen_window_keys(cfg), "attention_bias": layer.attention.bias == "all"}
