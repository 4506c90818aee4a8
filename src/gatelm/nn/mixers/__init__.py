"""Sequence mixers by kind: softmax attention and its alternatives.

A mixer is one file here: a config with the methods of `base.MixerSettings`, a module, one entry in
`MixerConfig` and one in `MIXERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Tag
from torch import nn

from gatelm.config import by_kind
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.attention.module import Attention
from gatelm.nn.mixers.base import Modifiers
from gatelm.nn.mixers.delta import GatedDelta, GatedDeltaConfig
from gatelm.nn.mixers.linear import LinearAttention, LinearAttentionConfig
from gatelm.nn.mixers.mamba2 import Mamba2, Mamba2Config

MixerConfig = Annotated[
    Annotated[AttentionConfig, Tag("attention")]
    | Annotated[GatedDeltaConfig, Tag("delta")]
    | Annotated[LinearAttentionConfig, Tag("linear")]
    | Annotated[Mamba2Config, Tag("mamba2")],
    by_kind("attention"),
]

MIXERS: dict[str, Callable[..., nn.Module]] = {
    "attention": Attention,
    "delta": GatedDelta,
    "linear": LinearAttention,
    "mamba2": Mamba2,
}


def build_mixer(
    cfg: MixerConfig, hidden_dim: int, layer_index: int, modifiers: Modifiers
) -> nn.Module:
    """The module that a mixer config describes."""
    return MIXERS[cfg.kind](cfg, hidden_dim, layer_index, modifiers)
