"""Llama: softmax attention without gates and without QK-norm."""

from __future__ import annotations

from typing import Any

from gatelm.config import ConfigError
from gatelm.hf.convert.formats.format import Format
from gatelm.nn.model import ModelConfig


class LlamaFormat(Format):
    """Format of Llama, with biases in all attention projections or in none."""

    name = model_type = "llama"
    label = "Llama"
    architecture = "LlamaForCausalLM"
    keys = "attention_bias mlp_bias"
    notes = "biases in all attention projections or in none"
    qk_norm = "never"
    biases = ("none", "all")

    def check(self, c: Any, where: str) -> None:
        """Refuse biases of the feed-forward network."""
        if c.mlp_bias:
            raise ConfigError(
                f"{where}: mlp_bias: a feed-forward network with biases has no form here"
            )

    def config_keys(self, cfg: ModelConfig) -> dict[str, Any]:
        """Return the key of a feed-forward network without biases."""
        return {"mlp_bias": False}
