"""From a list of layers to the shortest config that says the same, and the native form of parts."""

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
"""Their `hidden_act` in our terms."""

SITE = "sdpa"
"""The one site at which other formats have gates."""

GATE = f"{gate_module(SITE)}.proj.x"
"""The module, below a block, of the gate that other formats have."""

NATIVE_GATES = {
    form: GateConfig(site=SITE, granularity=form, compute_dtype="input")  # pyright: ignore[reportArgumentType]
    for form in ("element", "head")
}
"""The gate that other formats have, in our terms: sigmoid, from x, in the model's dtype."""

DELTA_GATE = GateConfig(site=SITE, activation="silu")
"""The gate that other formats have in Gated DeltaNet, in our terms: SiLU, from x, in float32."""


def compress(layers: Sequence[LayerConfig]) -> tuple[LayerConfig, tuple[LayerOverride, ...]]:
    """The first layer, and the others as overrides of it."""
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
    """The activation of a layer's feed-forward network, dense or of experts."""
    ffn = layer.ffn
    return (ffn if isinstance(ffn, MoEConfig) else layer.dense_ffn).activation


def ffn_dim(cfg: ModelConfig) -> int:
    """The width of the dense layers; that of one expert where there are none, which nothing reads
    then."""
    widths = [ffn.ffn_dim for ffn in ffns(cfg, SwiGLUConfig)]
    return (widths or [ffn.ffn_dim for ffn in ffns(cfg, MoEConfig)])[0]


def ffns(cfg: ModelConfig, kind: type[F]) -> list[F]:
    """The feed-forward networks of one kind."""
    return [layer.ffn for layer in cfg.layers() if isinstance(layer.ffn, kind)]
