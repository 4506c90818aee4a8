"""Mistral: Llama with one attention window in all layers."""

from __future__ import annotations

from gatelm.hf.convert.formats.format import Format


class MistralFormat(Format):
    """Format of dense Mistral models."""

    name = model_type = "mistral"
    label = "Mistral"
    architecture = "MistralForCausalLM"
    keys = "sliding_window"
    notes = "one window in all layers or none; no biases"
    qk_norm = "never"
    windows = "all layers"
