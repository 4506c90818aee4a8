"""Mistral: Llama with one attention window in all layers."""

from __future__ import annotations

from typing import Any

from gatelm.hf.convert.formats.format import Format
from gatelm.nn.block import LayerConfig
from gatelm.nn.model import ModelConfig


class MistralFormat(Format):
    """Mistral, dense."""

    name = model_type = "mistral"
    label = "Mistral"
    architecture = "MistralForCausalLM"
    keys = "sliding_window"
    notes = "one window in all layers or none; no biases"
    qk_norm = "never"
    windows = "all layers"

    def config_keys(self, cfg: ModelConfig, layer: LayerConfig) -> dict[str, Any]:
        """The window."""
        return {"sliding_window": layer.attention.window_tokens}
