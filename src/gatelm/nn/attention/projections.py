"""Query, key and value projections: a matrix each, or through a small latent."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import nn

from gatelm.config import Config
from gatelm.nn.attention.cross import CrossConfig, EncoderStates
from gatelm.nn.cache import Slot
from gatelm.nn.cost import ParamCount
from gatelm.nn.norm import NormConfig
from gatelm.nn.shapes import Float, Tensor


class Projected(NamedTuple):
    """q (B,T,N,H), k and v (B,t,K,H), of T tokens or of the t tokens of a second sequence.

    `latent` (B,T,C) is what k and v can be made from again.
    """

    q: Float[Tensor, "B T N H"]
    k: Float[Tensor, "B t K H"]
    v: Float[Tensor, "B t K V"]
    latent: Float[Tensor, "B T C"] | None = None


class QKVProjection(nn.Module):
    """Grouped-query projections: N query heads, K key/value heads, separate matrices."""

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        bias: bool,
        cross: CrossConfig | None = None,
    ):
        super().__init__()
        self.head_dim, self.reads_cross = head_dim, cross is not None
        source = hidden_dim if cross is None else cross.hidden_dim
        self.q = nn.Linear(hidden_dim, num_heads * head_dim, bias=bias)
        self.k = nn.Linear(source, num_kv_heads * head_dim, bias=bias)
        self.v = nn.Linear(source, num_kv_heads * head_dim, bias=bias)

    def forward(self, x: Float[Tensor, "B T D"], states: EncoderStates | None = None) -> Projected:
        """Project x (B,T,D) to q, and x or the second sequence to k and v."""
        heads = (-1, self.head_dim)
        q = self.q(x).unflatten(-1, heads)
        if not self.reads_cross:
            return Projected(q, self.k(x).unflatten(-1, heads), self.v(x).unflatten(-1, heads))
        assert states is not None
        k, v = (proj(states.states).unflatten(-1, heads) for proj in (self.k, self.v))
        return Projected(q, k, states.silence_padding(v))

    def extend(
        self,
        slot: Slot,
        k: Float[Tensor, "B t K H"],
        v: Float[Tensor, "B t K H"],
        latent: None = None,
    ) -> tuple[Float[Tensor, "B S K H"], Float[Tensor, "B S K H"]]:
        """Append new keys and values to the cache, and return all that are kept."""
        return slot.append(k, v)


class LatentConfig(Config):
    """Multi-head latent attention (arXiv 2405.04434, section 2.1).

    Keys and values of all heads are made from one latent of `kv_rank` numbers a token, which is
    what the cache holds. Positions cannot pass through it: the channels of a head that turn
    (`mixer.rope.partial_factor`, the first ones) have a key of their own, one for all heads.
    """

    kind: Literal["latent"] = "latent"
    kv_rank: int = Field(ge=1)
    """Numbers in the latent."""
    q_rank: int | None = Field(default=None, ge=1)
    """Numbers in the latent of the queries; None: one full matrix and no latent."""
    value_dim: int | None = Field(default=None, ge=1)
    """Channels of a head's values; None: the same number as of its queries."""
    norm: NormConfig = NormConfig()
    """The norm of the latents."""

    def param_count(
        self, hidden_dim: int, num_heads: int, width: int, rotary_dim: int
    ) -> ParamCount:
        """Count the parameters, for heads of `width` channels of which `rotary_dim` turn."""
        queries, values = num_heads * width, num_heads * (self.value_dim or width)
        keys = num_heads * (width - rotary_dim)
        matrix = hidden_dim * (self.kv_rank + rotary_dim) + self.kv_rank * (keys + values)
        norm = self.norm.num_weights(self.kv_rank)
        if self.q_rank is None:
            return ParamCount(matrix + hidden_dim * queries, norm=norm)
        matrix += self.q_rank * (hidden_dim + queries)
        return ParamCount(matrix, norm=norm + self.norm.num_weights(self.q_rank))


class LatentProjection(nn.Module):
    """Latent projections of N heads, whose keys share their first `rotary_dim` channels.

    cached: what the cache holds of a token. `latent`: the latent and the shared part of the key;
    keys and values of all tokens are made again in every call. `keys`: keys and values, since a
    modifier changes them after they were made.
    """

    def __init__(
        self,
        cfg: LatentConfig,
        hidden_dim: int,
        num_heads: int,
        head_dim: int,
        rotary_dim: int,
        cached: Literal["latent", "keys"],
    ):
        super().__init__()
        self.head_dim, self.rotary_dim, self.cached = head_dim, rotary_dim, cached
        self.value_dim = cfg.value_dim or head_dim
        q_in = cfg.q_rank or hidden_dim
        self.q_down = nn.Linear(hidden_dim, q_in, bias=False) if cfg.q_rank else None
        self.q_norm = cfg.norm.build(q_in) if cfg.q_rank else None
        self.q = nn.Linear(q_in, num_heads * head_dim, bias=False)
        self.kv_down = nn.Linear(hidden_dim, cfg.kv_rank, bias=False)
        self.kv_norm = cfg.norm.build(cfg.kv_rank)
        self.k_turning = nn.Linear(hidden_dim, rotary_dim, bias=False) if rotary_dim else None
        self.k = nn.Linear(cfg.kv_rank, num_heads * (head_dim - rotary_dim), bias=False)
        self.v = nn.Linear(cfg.kv_rank, num_heads * self.value_dim, bias=False)

    def forward(self, x: Float[Tensor, "B T D"], states: EncoderStates | None = None) -> Projected:
        """Project x (B,T,D) to q, k, v and the normed latent."""
        q_in = x
        if self.q_down is not None and self.q_norm is not None:
            q_in = self.q_norm(self.q_down(x))
        latent = self.kv_norm(self.kv_down(x))
        k_rotary = x[..., :0] if self.k_turning is None else self.k_turning(x)
        k, v = self._expand(latent, k_rotary)
        return Projected(self.q(q_in).unflatten(-1, (-1, self.head_dim)), k, v, latent)

    def extend(
        self,
        slot: Slot,
        k: Float[Tensor, "B T N H"],
        v: Float[Tensor, "B T N V"],
        latent: Float[Tensor, "B T C"],
    ) -> tuple[Float[Tensor, "B S N H"], Float[Tensor, "B S N V"]]:
        """Append new tokens to the cache, and return the keys and values of all that are kept."""
        if self.cached == "keys":
            return slot.append(k, v)
        shared = k[:, :, :1, : self.rotary_dim]
        latents, shared = slot.append(latent.unsqueeze(-2), shared)
        if latents.shape[1] == k.shape[1]:
            return k, v
        return self._expand(latents.squeeze(-2), shared.squeeze(-2))

    def _expand(
        self, latent: Float[Tensor, "B S C"], k_rotary: Float[Tensor, "B S R"]
    ) -> tuple[Float[Tensor, "B S N H"], Float[Tensor, "B S N V"]]:
        v = self.v(latent).unflatten(-1, (-1, self.value_dim))
        k = self.k(latent).unflatten(-1, (v.shape[-2], -1))
        k_rotary = k_rotary.unsqueeze(-2).expand(*k.shape[:-1], -1)
        return torch.cat((k_rotary, k), dim=-1), v
