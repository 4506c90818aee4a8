"""Dense feed-forward networks, which process every token alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from pydantic import Field
from torch import nn
from torch.nn import functional as F

from gatelm.config import Config, choice
from gatelm.nn.cost import ParamCount
from gatelm.nn.forward_state import Context
from gatelm.nn.shapes import Float, Tensor

FFN_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "relu2": lambda x: F.relu(x).square(),
}

if TYPE_CHECKING:
    FFNActivation = str
else:
    FFNActivation = choice(FFN_ACTIVATIONS, "activation")


class SwiGLUConfig(Config):
    """Gated network W_down (act(W_gate x) * W_up x) (arXiv 2002.05202)."""

    kind: Literal["swiglu"] = "swiglu"
    ffn_dim: int = Field(ge=1)
    activation: FFNActivation = "silu"

    def build(self, hidden_dim: int, layer_index: int) -> SwiGLU:
        """Build the module."""
        return SwiGLU(self, hidden_dim)

    def param_count(self, hidden_dim: int) -> ParamCount:
        """Count the parameters."""
        return ParamCount(3 * hidden_dim * self.ffn_dim)

    def output_weights(self) -> tuple[str, ...]:
        """Return the weights in which a factor on the network's output can be absorbed."""
        return ("down_proj.weight",)


class MLPConfig(Config):
    """Network W_down act(W_up x)."""

    kind: Literal["mlp"] = "mlp"
    ffn_dim: int = Field(ge=1)
    activation: FFNActivation = "gelu"

    def build(self, hidden_dim: int, layer_index: int) -> MLP:
        """Build the module."""
        return MLP(self, hidden_dim)

    def param_count(self, hidden_dim: int) -> ParamCount:
        """Count the parameters."""
        return ParamCount(2 * hidden_dim * self.ffn_dim)

    def output_weights(self) -> tuple[str, ...]:
        """Return the weights in which a factor on the network's output can be absorbed."""
        return ("down_proj.weight",)


class SwiGLU(nn.Module):
    """Gated feed-forward network; its gate is the FFN's own, not an attention gate."""

    def __init__(self, cfg: SwiGLUConfig, hidden_dim: int):
        super().__init__()
        self.act = FFN_ACTIVATIONS[cfg.activation]
        self.gate_proj = nn.Linear(hidden_dim, cfg.ffn_dim, bias=False)
        self.up_proj = nn.Linear(hidden_dim, cfg.ffn_dim, bias=False)
        self.down_proj = nn.Linear(cfg.ffn_dim, hidden_dim, bias=False)

    def forward(self, x: Float[Tensor, "B T D"], context: Context) -> Float[Tensor, "B T D"]:
        """Compute the network's output for x."""
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class MLP(nn.Module):
    """Two matrices and an activation."""

    def __init__(self, cfg: MLPConfig, hidden_dim: int):
        super().__init__()
        self.act = FFN_ACTIVATIONS[cfg.activation]
        self.up_proj = nn.Linear(hidden_dim, cfg.ffn_dim, bias=False)
        self.down_proj = nn.Linear(cfg.ffn_dim, hidden_dim, bias=False)

    def forward(self, x: Float[Tensor, "B T D"], context: Context) -> Float[Tensor, "B T D"]:
        """Compute the network's output for x."""
        return self.down_proj(self.act(self.up_proj(x)))
