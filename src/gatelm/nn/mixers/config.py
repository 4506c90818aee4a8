"""The union of all sequence mixers: softmax attention and its alternatives."""

from __future__ import annotations

from typing import Annotated

from pydantic import Tag

from gatelm.config import by_kind
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.mixers.delta import GatedDeltaConfig
from gatelm.nn.mixers.linear import LinearAttentionConfig
from gatelm.nn.mixers.mamba2 import Mamba2Config

MixerConfig = Annotated[
    Annotated[AttentionConfig, Tag("attention")]
    | Annotated[GatedDeltaConfig, Tag("delta")]
    | Annotated[LinearAttentionConfig, Tag("linear")]
    | Annotated[Mamba2Config, Tag("mamba2")],
    by_kind("attention"),
]
