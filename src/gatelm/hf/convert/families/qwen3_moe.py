"""Qwen3 with mixtures of experts, in some layers or in all."""

from __future__ import annotations

from typing import Any

from gatelm.hf.convert.families.qwen import EXPERT_KEYS, WINDOW_KEYS, is_expert_layer, write_experts
from gatelm.hf.convert.formats.format import Format
from gatelm.nn.model import ModelConfig


class Qwen3MoeFormat(Format):
    """Format of Qwen3 MoE, which has no shared expert."""

    name = model_type = "qwen3_moe"
    label = "Qwen3 with experts"
    architecture = "Qwen3MoeForCausalLM"
    keys = f"{WINDOW_KEYS} attention_bias {EXPERT_KEYS}"
    notes = "mixtures of experts, in some layers or all; one window in all layers or none"
    biases = ("none", "all")
    windows = "all layers"
    experts = "any layer"

    def is_sparse(self, c: Any, index: int) -> bool:
        """Whether a layer is a mixture."""
        return is_expert_layer(c, index)

    def config_keys(self, cfg: ModelConfig) -> dict[str, Any]:
        """Return the keys of the experts."""
        return write_experts(cfg)
