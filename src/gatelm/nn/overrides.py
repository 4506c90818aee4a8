"""The shortest description of layers that differ: the first one, and what others change of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gatelm.nn.block import LayerConfig
from gatelm.nn.model import LayerOverride, ModelConfig


def with_layers(cfg: ModelConfig, layers: Sequence[LayerConfig]) -> ModelConfig:
    """The model with these layers in place of its own."""
    base, overrides = compress(layers)
    tree = {"layer": base.tree(), "layer_overrides": [one.tree() for one in overrides]}
    return ModelConfig.parse({**cfg.tree(), **tree})


def compress(layers: Sequence[LayerConfig]) -> tuple[LayerConfig, tuple[LayerOverride, ...]]:
    """Describe layers by the first one and by what the others change of it."""
    base = layers[0]
    groups: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for index, layer in enumerate(layers):
        if layer == base:
            continue
        changes = _changes(base, layer)
        groups.setdefault(repr(changes), (changes, []))[1].append(index)
    overrides = tuple(
        LayerOverride(layers=tuple(indices), set=changes) for changes, indices in groups.values()
    )
    return base, overrides


def _changes(base: LayerConfig, layer: LayerConfig) -> dict[str, Any]:
    out: dict[str, Any] = {}
    there, here = base.tree(), layer.tree()
    for name, value in here.items():
        if value == there[name]:
            continue
        if name != "mixer" or value["kind"] != there["mixer"]["kind"]:
            out[name] = value
            continue
        for key in value:
            if value[key] != there["mixer"][key]:
                out[f"mixer.{key}"] = value[key]
    return out
