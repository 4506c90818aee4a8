"""The union of all feed-forward networks.

A network is a config with `build`, `param_count` and `output_weights` (see `SwiGLUConfig`), a
module called as `(x, context)`, and one entry in `FFNConfig`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Tag

from gatelm.config import Config, by_kind
from gatelm.nn.cost import ParamCount
from gatelm.nn.ffn.mlp import MLPConfig, SwiGLUConfig
from gatelm.nn.ffn.moe import MoEConfig


class NoFFNConfig(Config):
    """No feed-forward network: the layer ends after its mixer."""

    kind: Literal["none"] = "none"

    def build(self, hidden_dim: int, layer_index: int) -> None:
        """Return None: there is no module."""

    def param_count(self, hidden_dim: int) -> ParamCount:
        """Count no parameters."""
        return ParamCount()

    def output_weights(self) -> tuple[str, ...]:
        """Return no weights in which a factor on the output can be absorbed."""
        return ()


FFNConfig = Annotated[
    Annotated[SwiGLUConfig, Tag("swiglu")]
    | Annotated[MLPConfig, Tag("mlp")]
    | Annotated[MoEConfig, Tag("moe")]
    | Annotated[NoFFNConfig, Tag("none")],
    by_kind("swiglu"),
]
