"""Feed-forward networks.

One is a config with a `part` method (its parameters), a module built as `(cfg, hidden_dim,
layer_index)` and called as `(x, context)`, one entry in `FFNConfig` and one in `FFNS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Tag
from torch import nn

from gatelm.config import Config, by_kind
from gatelm.nn.cost import ParamCount
from gatelm.nn.ffn.mlp import MLP, MLPConfig, SwiGLU, SwiGLUConfig
from gatelm.nn.ffn.moe import MoE, MoEConfig


class NoFFNConfig(Config):
    """No feed-forward network: the layer ends after its mixer."""

    kind: Literal["none"] = "none"

    def param_count(self, hidden_dim: int) -> ParamCount:
        """Parameters: none."""
        return ParamCount()


FFNConfig = Annotated[
    Annotated[SwiGLUConfig, Tag("swiglu")]
    | Annotated[MLPConfig, Tag("mlp")]
    | Annotated[MoEConfig, Tag("moe")]
    | Annotated[NoFFNConfig, Tag("none")],
    by_kind("swiglu"),
]


FFNS: dict[str, Callable[..., nn.Module]] = {"swiglu": SwiGLU, "mlp": MLP, "moe": MoE}


def build_ffn(cfg: FFNConfig, hidden_dim: int, layer_index: int) -> nn.Module:
    """The module that an FFN config (other than none) describes."""
    return FFNS[cfg.kind](cfg, hidden_dim, layer_index)
