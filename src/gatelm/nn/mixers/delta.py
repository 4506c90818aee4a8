"""Gated DeltaNet: linear attention whose state forgets and corrects (arXiv 2412.06464).

Its output gate is a value like any other gate, the preset `sdpa-silu-gate` at `sdpa`, after the
output norm; without it, or with another, the mixer is the same.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from gatelm.config import ConfigError, not_identity
from gatelm.nn.cost import ParamCount
from gatelm.nn.forward_state import Context
from gatelm.nn.gates.sites import Sources
from gatelm.nn.mixers.base import HeadShapes, MixerSettings, Modifiers, check_width
from gatelm.nn.mixers.delta_rule import CHUNK_TOKENS, rule_for
from gatelm.nn.mixers.recurrent import RecurrentMixer
from gatelm.nn.mixers.short_conv import ShortConv
from gatelm.nn.norm import NormConfig
from gatelm.nn.precision import to_float32
from gatelm.nn.shapes import Float, Tensor


class GatedDeltaConfig(MixerSettings):
    """Gated DeltaNet: a matrix per head that is decayed, corrected and read at every token."""

    linear_sites: ClassVar[tuple[str, ...]] = ("sdpa", "out")

    kind: Literal["delta"] = "delta"
    num_heads: int = Field(ge=1)
    """Heads of values, each with a state of its own."""
    num_key_heads: int | None = Field(default=None, ge=1)
    """Heads of queries and keys, each for num_heads / num_key_heads heads of values; None: as many
    as heads of values."""
    head_dim: int | None = Field(default=None, ge=1)
    """Width of a query and a key; None: hidden_dim / num_heads."""
    value_dim: int | None = Field(default=None, ge=1)
    """Width of a value; None: that of a key."""
    conv_tokens: int = Field(default=4, ge=1)
    """Tokens that the short convolution over queries, keys and values sees, the newest included."""
    out_norm: NormConfig | None = NormConfig()
    """A norm over each head's output, before `sdpa`."""
    kernel: Literal["auto", "torch"] = not_identity("auto")
    """auto: flash-linear-attention's kernels on CUDA, where they are installed."""

    @property
    def key_heads(self) -> int:
        """Number of heads of queries and keys."""
        return self.num_key_heads or self.num_heads

    def key_width(self, hidden_dim: int) -> int:
        """Number of channels of one query or key."""
        return self.head_dim or hidden_dim // self.num_heads

    def value_width(self, hidden_dim: int) -> int:
        """Number of channels of one value."""
        return self.value_dim or self.key_width(hidden_dim)

    def channels(self, hidden_dim: int) -> tuple[int, int, int]:
        """Number of channels of all queries, keys and values together."""
        keys = self.key_heads * self.key_width(hidden_dim)
        return keys, keys, self.num_heads * self.value_width(hidden_dim)

    def build(self, hidden_dim: int, layer_index: int, modifiers: Modifiers = ()) -> GatedDelta:
        """Build the module with the modifiers at its sites."""
        return GatedDelta(self, hidden_dim, layer_index, modifiers)

    def heads(self, hidden_dim: int) -> HeadShapes:
        """Numbers of heads and their widths."""
        key, value = self.key_width(hidden_dim), self.value_width(hidden_dim)
        keys, values = (self.key_heads, key), (self.num_heads, value)
        return HeadShapes(keys, keys, values, values)

    def param_count(self, hidden_dim: int) -> ParamCount:
        """Count the parameters without those of the gates."""
        channels = self.channels(hidden_dim)
        matrix = hidden_dim * (sum(channels) + channels[-1] + 2 * self.num_heads)
        other = self.conv_tokens * sum(channels) + 2 * self.num_heads
        value = self.value_width(hidden_dim)
        return ParamCount(matrix, other, self.out_norm.num_weights(value) if self.out_norm else 0)

    def mixing_flops_per_token(self, hidden_dim: int, seq_len: int) -> int:
        """Count FLOPs of the chunked form's matrix products and its triangular solve."""
        key, value = self.key_width(hidden_dim), self.value_width(hidden_dim)
        chunk = min(CHUNK_TOKENS, seq_len)
        return self.num_heads * (chunk * (5 * key + 3 * value) + 6 * key * value)

    def cached_values(self, hidden_dim: int, num_tokens: int, sites: Collection[str] = ()) -> int:
        """Count the numbers of the state and of the convolution's tail, for any text length."""
        if num_tokens == 0:
            return 0
        state = self.num_heads * self.key_width(hidden_dim) * self.value_width(hidden_dim)
        return state + (self.conv_tokens - 1) * sum(self.channels(hidden_dim))

    def check(self, hidden_dim: int, where: str) -> None:
        """Raises ConfigError, naming `where`, for values that cannot work together."""
        check_width(self.num_heads, self.head_dim, hidden_dim, where)
        if self.num_heads % self.key_heads:
            raise ConfigError(
                f"{where}.num_key_heads: {self.num_heads} heads of values cannot be divided among "
                f"{self.key_heads} heads of keys; use a divisor of {self.num_heads}"
            )


class GatedDelta(RecurrentMixer):
    """Module: projections, short convolution with SiLU, unit q and k, the delta rule, a norm."""

    cfg: GatedDeltaConfig

    def __init__(
        self,
        cfg: GatedDeltaConfig,
        hidden_dim: int,
        layer_index: int,
        modifiers: Modifiers = (),
    ):
        super().__init__(cfg, hidden_dim, layer_index)
        self.conv = ShortConv(sum(cfg.channels(hidden_dim)), cfg.conv_tokens)
        self.beta_proj = nn.Linear(hidden_dim, cfg.num_heads, bias=False)
        self.decay_proj = nn.Linear(hidden_dim, cfg.num_heads, bias=False)
        self.dt_bias = nn.Parameter(torch.empty(cfg.num_heads))
        self.A_log = nn.Parameter(torch.empty(cfg.num_heads))
        self.out_norm = cfg.out_norm.build(self.value_width) if cfg.out_norm else nn.Identity()
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
        """Return the rule's normed outputs, the convolution's tail and the rule's state."""
        tail, state = states or (None, None)
        x, starts = sources.x, context.document_starts()
        (q, k, v), tail = self.conv.on_heads((q, k, v), starts, tail)
        q = self.gates("q_rot", unit(q) * self.key_width**-0.5, sources)
        k = self.gates("k_rot", unit(k), sources)
        rule = rule_for(self.cfg.kernel, v)
        y, state = rule(q, k, v, self._log_decay(x), self.beta_proj(x).sigmoid(), starts, state)
        return self.out_norm(y), (tail, state)

    def _log_decay(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T N"]:
        """Compute log alpha = -A softplus(W x + dt_bias) in float32 (arXiv 2312.00752, 3.5)."""
        step = to_float32(self.decay_proj(x))
        return -self.A_log.to(step.dtype).exp() * F.softplus(step + self.dt_bias)


def unit(x: Float[Tensor, "*B H"]) -> Float[Tensor, "*B H"]:
    """Divide x by its length, in float32."""
    y = to_float32(x)
    return (y * (y.square().sum(dim=-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)
