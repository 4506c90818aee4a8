"""Qwen2: biases of q, k and v, windows in some layers."""

from __future__ import annotations

from typing import Any

from gatelm.hf.convert.families.qwen import WINDOW_KEYS
from gatelm.hf.convert.formats.format import Bias, Format


class Qwen2Format(Format):
    """Qwen2 and Qwen2.5, dense; the config has no key for the biases."""

    name = model_type = "qwen2"
    label = "Qwen2"
    architecture = "Qwen2ForCausalLM"
    keys = f"{WINDOW_KEYS} use_mrope"
    notes = "biases of q, k and v; windows by layer"
    qk_norm = "never"
    biases = ("qkv",)
    windows = "by layer"

    def bias(self, c: Any) -> Bias:
        """Biases of q, k and v, always."""
        return "qkv"
