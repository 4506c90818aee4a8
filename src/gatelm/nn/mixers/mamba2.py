"""Mamba-2, a selective state space (arXiv 2405.21060, section 7 and appendix).

    S_t = exp(-A dt_t) S_(t-1) + dt_t B_t x_t^T,    y_t = S_t^T C_t + D x_t

In attention's words C is the query, B the key and x the value, and the sites are called so. The
output gate of the published mixer is a value like any other gate, the preset `sdpa-silu-gate` at
`sdpa`, before the output norm; without it, or with another, the mixer is the same.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from gatelm.config import ConfigError
from gatelm.nn.cost import ParamCount
from gatelm.nn.forward_state import Context
from gatelm.nn.gates.gate import GateConfig
from gatelm.nn.gates.sites import Sources
from gatelm.nn.mixers.base import HeadShapes, MixerSettings, Modifiers
from gatelm.nn.mixers.recurrent import RecurrentMixer
from gatelm.nn.mixers.scan import scan, scan_flops_per_token
from gatelm.nn.mixers.short_conv import ShortConv
from gatelm.nn.norm import Norm, NormConfig, rms_norm
from gatelm.nn.precision import to_float32
from gatelm.nn.shapes import Float, Tensor


class Mamba2Config(MixerSettings):
    """Mamba-2: a state of state_dim x head_dim per head, which decays at an input-set rate."""

    sites: ClassVar[tuple[str, ...]] = ("q", "k", "v", "sdpa", "out")

    kind: Literal["mamba2"] = "mamba2"
    num_heads: int = Field(ge=1)
    """Heads of values, each with a state of its own."""
    head_dim: int | None = Field(default=None, ge=1)
    """Channels of a head's values; None: 2 hidden_dim / num_heads."""
    state_dim: int = Field(default=128, ge=1)
    """Channels of B and C."""
    num_groups: int = Field(default=1, ge=1)
    """Heads of B and C, each for num_heads / num_groups heads of values."""
    conv_tokens: int = Field(default=4, ge=1)
    """Tokens that the short convolution over x, B and C sees, the newest included."""
    bias: Literal["none", "conv"] = "conv"
    """Where there are biases: nowhere, or in the convolution."""
    out_norm: NormConfig | None = NormConfig(eps=1e-5)
    """An RMSNorm over each group's outputs, after `sdpa`."""

    def width(self, hidden_dim: int) -> int:
        """Number of channels of one head's values."""
        return self.head_dim or 2 * hidden_dim // self.num_heads

    def channels(self, hidden_dim: int) -> tuple[int, int, int]:
        """Number of channels of all heads of x, B and C."""
        keys = self.num_groups * self.state_dim
        return self.num_heads * self.width(hidden_dim), keys, keys

    def build(self, hidden_dim: int, layer_index: int, modifiers: Modifiers = ()) -> Mamba2:
        """Build the module with the modifiers at its sites."""
        return Mamba2(self, hidden_dim, layer_index, modifiers)

    def heads(self, hidden_dim: int) -> HeadShapes:
        """Numbers of heads and their widths."""
        keys, values = (self.num_groups, self.state_dim), (self.num_heads, self.width(hidden_dim))
        return HeadShapes(keys, keys, values, values)

    def param_count(self, hidden_dim: int) -> ParamCount:
        """Count the parameters without those of the gates."""
        channels = self.channels(hidden_dim)
        matrix = hidden_dim * (sum(channels) + self.num_heads + channels[0])
        biases = sum(channels) if self.bias == "conv" else 0
        other = self.conv_tokens * sum(channels) + biases + 3 * self.num_heads
        return ParamCount(
            matrix, other, self.out_norm.num_weights(channels[0]) if self.out_norm else 0
        )

    def mixing_flops_per_token(self, hidden_dim: int, seq_len: int) -> int:
        """Count FLOPs of the chunked form's matrix products."""
        heads = (self.num_groups, self.num_groups, self.num_heads)
        return scan_flops_per_token(seq_len, heads, self.state_dim, self.width(hidden_dim))

    def cached_values(self, hidden_dim: int, num_tokens: int, sites: Collection[str] = ()) -> int:
        """Count the numbers of the state and of the convolution's tail, for any text length."""
        if num_tokens == 0:
            return 0
        channels = self.channels(hidden_dim)
        return channels[0] * self.state_dim + (self.conv_tokens - 1) * sum(channels)

    def check(self, hidden_dim: int, where: str) -> None:
        """Raises ConfigError, naming `where`, for values that cannot work together."""
        if self.head_dim is None and 2 * hidden_dim % self.num_heads:
            raise ConfigError(
                f"{where}.num_heads: 2 hidden_dim = {2 * hidden_dim} is not a multiple of "
                f"{self.num_heads} heads; change one of them, or set mixer.head_dim"
            )
        if self.num_heads % self.num_groups:
            raise ConfigError(
                f"{where}.num_groups: {self.num_heads} heads cannot be divided among "
                f"{self.num_groups} groups; use a divisor of {self.num_heads}"
            )
        if self.out_norm is not None and self.out_norm.kind != "rmsnorm":
            raise ConfigError(f"{where}.out_norm.kind: {self.out_norm.kind}; use rmsnorm or null")

    def check_gate(self, gate: GateConfig, where: str) -> None:
        """Raises ConfigError for a gate that cannot work here."""
        super().check_gate(gate, where)
        if "q" in gate.inputs and self.num_groups != self.num_heads:
            raise ConfigError(
                f"{where}.inputs: q is one per group and not per head here; use x or y, or as many "
                "mixer.num_groups as heads"
            )


class Mamba2(RecurrentMixer):
    """Module of Mamba-2: projections, short convolution with SiLU, scan, norm."""

    cfg: Mamba2Config

    def __init__(
        self,
        cfg: Mamba2Config,
        hidden_dim: int,
        layer_index: int,
        modifiers: Modifiers = (),
    ):
        super().__init__(cfg, hidden_dim, layer_index)
        channels = cfg.channels(hidden_dim)
        self.step_proj = nn.Linear(hidden_dim, cfg.num_heads, bias=False)
        self.conv = ShortConv(sum(channels), cfg.conv_tokens, bias=cfg.bias == "conv")
        self.dt_bias = nn.Parameter(torch.empty(cfg.num_heads))
        self.A_log = nn.Parameter(torch.empty(cfg.num_heads))
        self.skip = nn.Parameter(torch.empty(cfg.num_heads))
        self.out_norm = nn.Identity()
        if cfg.out_norm is not None:
            self.out_norm = GroupedRMSNorm(cfg.out_norm, channels[0], cfg.num_groups)
        self.add_output(hidden_dim, modifiers)

    def mix(
        self,
        q: Float[Tensor, "B T K Q"],
        k: Float[Tensor, "B T K Q"],
        v: Float[Tensor, "B T N V"],
        sources: Sources,
        context: Context,
        states: tuple[Tensor, ...],
    ) -> tuple[Float[Tensor, "B T N V"], tuple[Tensor, ...]]:
        """Return the outputs of the scan, the convolution's tail and the scan's state."""
        tail, state = states or (None, None)
        starts = context.document_starts()
        (v, k, q), tail = self.conv.on_heads((v, k, q), starts, tail)
        step = F.softplus(to_float32(self.step_proj(sources.x)) + self.dt_bias)
        log_decay = -to_float32(self.A_log).exp() * step
        y, state = scan(q, k, v * step[..., None], log_decay, starts, state)
        return (y + self.skip[:, None] * v).to(sources.x.dtype), (tail, state)

    def merge(self, y: Float[Tensor, "B T N V"]) -> Float[Tensor, "B T C"]:
        """Concatenate the heads and apply the norm."""
        return self.out_norm(y.flatten(-2))


class GroupedRMSNorm(Norm):
    """RMSNorm over each of `groups` equal parts of the channels, with one weight per channel."""

    def __init__(self, cfg: NormConfig, dim: int, groups: int):
        super().__init__(cfg, dim)
        self.groups = groups

    def forward(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """Return the normed x."""
        parts = to_float32(x).unflatten(-1, (self.groups, -1))
        y = rms_norm(parts, None, self.cfg.eps).flatten(-2)
        if self.weight is not None:
            y = y * (1.0 + self.weight if self.cfg.weight == "zero_centred" else self.weight)
        return y.to(x.dtype)
