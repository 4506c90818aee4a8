"""Qwen2: biases of q, k and v, windows in some layers."""

from __future__ import annotations

from typing import Any

from gatelm.hf.convert.families.qwen import WINDOW_KEYS
from gatelm.hf.convert.formats.format import Bias, Format


class Qwen2Format(Format):
    """Format of dense Qwen2 and Qwen2.5, whose config has no key for the biases."""

    name = model_type = "qwen2"
    label = "Qwen2"
    architecture = "Qwen2ForCausalLM"
    keys = f"{WINDOW_KEYS} use_mrope"
    notes = "biases of q, k and v; windows by layer"
    qk_norm = "never"
    biases = ("qkv",)
    windows = "by layer"

    def bias(self, c: Any) -> Bias:
        """Return biases of q, k and v, which the family always has."""
        return "qkv"
