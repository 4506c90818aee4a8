"""Linear attention (arXiv 2006.16236): a feature map in place of the softmax.

    y_t = sum_j phi(q_t).phi(k_j) v_j / sum_j phi(q_t).phi(k_j),   j <= t

Cost is linear in the text's length and the cache does not grow. A gate at `sdpa` is on each head's
output, where that of softmax attention is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from gatelm.config import ConfigError, choice
from gatelm.nn.cost import ParamCount
from gatelm.nn.forward_state import Context
from gatelm.nn.gates.sites import Sources
from gatelm.nn.mixers.base import (
    HeadShapes,
    MixerSettings,
    Modifiers,
    check_kv_heads,
    check_width,
)
from gatelm.nn.mixers.recurrent import RecurrentMixer
from gatelm.nn.mixers.scan import scan, scan_flops_per_token
from gatelm.nn.norm import NormConfig
from gatelm.nn.positions.rope import RopeConfig, rotate
from gatelm.nn.shapes import Float, Tensor

FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu1": lambda x: F.elu(x) + 1.0,
    "relu": F.relu,
    "softmax": lambda x: x.softmax(dim=-1),
    "identity": lambda x: x,
}
"""phi by name, over a head's channels. elu1: elu + 1 (arXiv 2006.16236). softmax: over the
channels, in the spirit of arXiv 1812.01243."""

EPS = 1e-6
"""Number added to the sum of weights, which relu can make zero."""

if TYPE_CHECKING:
    FeatureMap = str
else:
    FeatureMap = choice(FEATURE_MAPS, "feature map")


class LinearAttentionConfig(MixerSettings):
    """Grouped-query linear attention."""

    sites: ClassVar[tuple[str, ...]] = ("q", "k", "v", "sdpa", "out")

    kind: Literal["linear"] = "linear"
    num_heads: int = Field(ge=1)
    num_kv_heads: int | None = Field(default=None, ge=1)
    """Number of key and value heads; None: the same as of query heads."""
    head_dim: int | None = Field(default=None, ge=1)
    """Channels of a head; None: hidden_dim / num_heads."""
    feature_map: FeatureMap = "elu1"
    normaliser: Literal["sum", "none"] = "sum"
    """sum: weights of a query sum to 1. none: queries are scaled by 1/sqrt(head_dim) instead, and
    outputs grow with the text unless `out_norm` holds them."""
    out_norm: NormConfig | None = None
    """A norm over each head's output, before `sdpa`."""
    rope: RopeConfig | None = None
    """Rotary positions on phi(q) and phi(k); the sum of weights is of unturned ones (arXiv
    2104.09864, eq. 19)."""

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads."""
        return self.num_kv_heads or self.num_heads

    def width(self, hidden_dim: int) -> int:
        """Number of channels of one head."""
        return self.head_dim or hidden_dim // self.num_heads

    def build(
        self, hidden_dim: int, layer_index: int, modifiers: Modifiers = ()
    ) -> LinearAttention:
        """Build the module with the modifiers at its sites."""
        return LinearAttention(self, hidden_dim, layer_index, modifiers)

    def heads(self, hidden_dim: int) -> HeadShapes:
        """Numbers of heads and their widths."""
        width = self.width(hidden_dim)
        queries, keys = (self.num_heads, width), (self.kv_heads, width)
        return HeadShapes(queries, keys, keys, queries)

    def param_count(self, hidden_dim: int) -> ParamCount:
        """Count the parameters without those of the gates."""
        width = self.width(hidden_dim)
        matrix = hidden_dim * width * 2 * (self.num_heads + self.kv_heads)
        return ParamCount(matrix, norm=self.out_norm.num_weights(width) if self.out_norm else 0)

    def mixing_flops_per_token(self, hidden_dim: int, seq_len: int) -> int:
        """Count FLOPs of the chunked form's matrix products."""
        width, heads = self.width(hidden_dim), (self.num_heads, self.kv_heads, self.kv_heads)
        if self.normaliser == "none" or self.rope is None:
            with_sum = 1 if self.normaliser == "sum" else 0
            return scan_flops_per_token(seq_len, heads, width, width + with_sum)
        mixed = scan_flops_per_token(seq_len, heads, width, width)
        return mixed + scan_flops_per_token(seq_len, heads, width, 1)

    def cached_values(self, hidden_dim: int, num_tokens: int, sites: Collection[str] = ()) -> int:
        """Count the numbers of the state, for any text length."""
        width = self.width(hidden_dim)
        sums = 1 if self.normaliser == "sum" else 0
        return self.kv_heads * width * (width + sums) if num_tokens else 0

    def check(self, hidden_dim: int, where: str) -> None:
        """Raises ConfigError, naming `where`, for values that cannot work together."""
        check_width(self.num_heads, self.head_dim, hidden_dim, where)
        check_kv_heads(self.num_heads, self.kv_heads, where)
        if self.normaliser == "sum" and self.feature_map == "identity":
            raise ConfigError(
                f"{where}.feature_map: identity gives weights of both signs, whose sum may be 0; "
                "set normaliser to none, or use elu1, relu or softmax"
            )
        if self.rope is not None:
            self.rope.check(self.width(hidden_dim), where)
            if self.rope.length_dependent:
                raise ConfigError(
                    f"{where}.rope.scaling: one that moves with the text's length cannot turn "
                    "keys that the state has already summed; use another kind"
                )


class LinearAttention(RecurrentMixer):
    """Module of linear attention: projections, feature map, running sum, optional norm."""

    cfg: LinearAttentionConfig

    def __init__(
        self,
        cfg: LinearAttentionConfig,
        hidden_dim: int,
        layer_index: int,
        modifiers: Modifiers = (),
    ):
        super().__init__(cfg, hidden_dim, layer_index)
        self.out_norm = cfg.out_norm.build(self.value_width) if cfg.out_norm else nn.Identity()
        self.add_output(hidden_dim, modifiers)

    def mix(
        self,
        q: Float[Tensor, "B T N H"],
        k: Float[Tensor, "B T K H"],
        v: Float[Tensor, "B T K H"],
        sources: Sources,
        context: Context,
        states: tuple[Tensor, ...],
    ) -> tuple[Float[Tensor, "B T N H"], tuple[Tensor, ...]]:
        """Return the normed outputs and the sums so far."""
        y, states = self._summed(q, k, v, context, states)
        return self.out_norm(y), states

    def _summed(
        self, q: Tensor, k: Tensor, v: Tensor, context: Context, states: tuple[Tensor, ...]
    ) -> tuple[Float[Tensor, "B T N H"], tuple[Tensor, ...]]:
        phi, starts = FEATURE_MAPS[self.cfg.feature_map], context.document_starts()
        old = iter(states)
        q, k = phi(q), phi(k)
        if self.cfg.normaliser == "none":
            q = q * self.key_width**-0.5
        turned_q, turned_k = q, k
        if self.cfg.rope is not None:
            cos, sin = context.rotation(self.cfg.rope, self.key_width)
            turned_q = rotate(q, cos, sin, self.cfg.rope.pairs)
            turned_k = rotate(k, cos, sin, self.cfg.rope.pairs)
        if self.cfg.normaliser == "none":
            y, state = scan(turned_q, turned_k, v, None, starts, next(old, None))
            return y.to(v.dtype), (state,)
        ones = v.new_ones(*v.shape[:-1], 1)
        if self.cfg.rope is None:
            y, state = scan(q, k, torch.cat((v, ones), dim=-1), None, starts, next(old, None))
            return (y[..., :-1] / (y[..., -1:] + EPS)).to(v.dtype), (state,)
        y, state = scan(turned_q, turned_k, v, None, starts, next(old, None))
        weight, sums = scan(q, k, ones, None, starts, next(old, None))
        return (y / (weight + EPS)).to(v.dtype), (state, sums)
