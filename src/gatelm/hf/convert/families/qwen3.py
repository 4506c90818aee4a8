"""Qwen3: QK-norm, windows in some layers."""

from __future__ import annotations

from gatelm.hf.convert.families.qwen import WINDOW_KEYS
from gatelm.hf.convert.formats.format import Format


class Qwen3Format(Format):
    """Format of dense Qwen3 models."""

    name = model_type = "qwen3"
    label = "Qwen3"
    architecture = "Qwen3ForCausalLM"
    keys = f"{WINDOW_KEYS} attention_bias"
    notes = "biases in all attention projections or in none; windows by layer"
    biases = ("none", "all")
    windows = "by layer"
