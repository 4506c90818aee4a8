"""Layers as configs: the gates that other formats have, and what all layers share."""

from __future__ import annotations

from typing import TypeVar

from gatelm.config import Config
from gatelm.nn.block import LayerConfig
from gatelm.nn.ffn.config import MoEConfig, SwiGLUConfig
from gatelm.nn.gates.gate import GateConfig
from gatelm.nn.gates.sites import gate_module
from gatelm.nn.model import ModelConfig

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
