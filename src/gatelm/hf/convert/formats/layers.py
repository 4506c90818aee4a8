"""Layers as configs: the shortest description of many layers, and the gates of other formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from gatelm.config import Config
from gatelm.nn.block import LayerConfig
from gatelm.nn.ffn.config import MoEConfig, SwiGLUConfig
from gatelm.nn.gates.gate import GateConfig
from gatelm.nn.gates.sites import gate_module
from gatelm.nn.model import LayerOverride, ModelConfig

F = TypeVar("F", bound=Config)

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "relu": "relu", "relu2": "relu2"}
"""The activation of this package for each `hidden_act` of transformers."""

SITE = "sdpa"
"""The one site at which other formats have gates."""

GATE = f"{gate_module(SITE)}.proj.x"
"""The module, below a block, of the gate that other formats have."""

NATIVE_GATES = {
    form: GateConfig(site=SITE, granularity=form, compute_dtype="input")  # pyright: ignore[reportArgumentType]
    for form in ("element", "head")
}
"""The gate of other formats as a config of this package, by its form: sigmoid, from x, in the
model's dtype."""

DELTA_GATE = GateConfig(site=SITE, activation="silu")
"""The gate of Gated DeltaNet in other formats as a config of this package: SiLU, from x, in
float32."""


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


def activation_of(layer: LayerConfig) -> str:
    """Return the activation of a layer's feed-forward network, dense or of experts."""
    ffn = layer.ffn
    return (ffn if isinstance(ffn, MoEConfig) else layer.dense_ffn).activation


def ffn_dim(cfg: ModelConfig) -> int:
    """Return the width of the dense layers; without any, that of an expert, which nothing reads."""
    widths = [ffn.ffn_dim for ffn in ffns(cfg, SwiGLUConfig)]
    return (widths or [ffn.ffn_dim for ffn in ffns(cfg, MoEConfig)])[0]


def ffns(cfg: ModelConfig, kind: type[F]) -> list[F]:
    """Return the configs of all feed-forward networks of one kind."""
    return [layer.ffn for layer in cfg.layers() if isinstance(layer.ffn, kind)]
