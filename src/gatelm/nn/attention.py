"""Softmax attention: the one forward, with its sites."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pydantic import Field
from torch import nn

from gatelm.config import Config, choice
from gatelm.nn.backends import BACKENDS
from gatelm.nn.cache import KVCache
from gatelm.nn.gate import ModifierConfig, SiteShape, build_modifier
from gatelm.nn.masks import AttentionMask
from gatelm.nn.norm import Norm, NormConfig
from gatelm.nn.projections import QKVProjection
from gatelm.nn.rope import RopeConfig, rotary_angles, rotate
from gatelm.nn.shapes import Float, Int, Tensor
from gatelm.nn.sites import ATTENTION_SITES, BACKEND_TAPS, Sites, Sources, Taps

if TYPE_CHECKING:
    BackendName = str
else:
    BackendName = choice(BACKENDS, "backend")


class AttentionConfig(Config):
    """Grouped-query softmax attention."""

    kind: Literal["attention"] = "attention"
    num_heads: int = Field(ge=1)
    num_kv_heads: int | None = Field(default=None, ge=1)
    """None: as many as query heads."""
    head_dim: int | None = Field(default=None, ge=1)
    """None: hidden_dim / num_heads."""
    qk_norm: NormConfig | None = None
    """A norm over each query's and key's head_dim channels, before RoPE."""
    rope: RopeConfig | None = RopeConfig()
    window_tokens: int | None = Field(default=None, ge=1)
    """A query sees this many keys, itself included; None sees all before it."""
    bias: Literal["none", "qkv", "all"] = "none"
    scale: float | None = None
    """Factor on q k^T; None: 1/sqrt(head_dim)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """On the attention probabilities, in training."""
    backend: BackendName = Field(default="sdpa", json_schema_extra={"identity": False})

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    def width(self, hidden_dim: int) -> int:
        """Channels of one head."""
        return self.head_dim or hidden_dim // self.num_heads

    def site_shape(self, site: str, hidden_dim: int) -> SiteShape:
        """What a gate at `site` must know of its tensor."""
        width = self.width(hidden_dim)
        heads = {"k": self.kv_heads, "v": self.kv_heads, "k_rot": self.kv_heads, "out": 1}
        return SiteShape(
            num_heads=heads.get(site, self.num_heads),
            head_dim=hidden_dim if site == "out" else width,
            hidden_dim=hidden_dim,
            num_groups=self.kv_heads,
            num_query_heads=self.num_heads,
            query_dim=width,
        )


@dataclass
class Context:
    """What all layers of one forward share: the mask, the positions, the cache."""

    mask: AttentionMask
    positions: Int[Tensor, "*B T"]
    cache: KVCache | None = None
    _rotations: dict[tuple[RopeConfig, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def rotation(self, rope: RopeConfig, head_dim: int) -> tuple[Tensor, Tensor]:
        """cos and sin (*B, T, rotary_dim/2) of the rotary angles, computed once a forward."""
        key = (rope, head_dim)
        if key not in self._rotations:
            angles = rotary_angles(rope, head_dim, self.positions)
            self._rotations[key] = (angles.cos(), angles.sin())
        return self._rotations[key]


class Attention(nn.Module):
    """The one attention: every variant is a value in its config or a modifier at a site."""

    def __init__(
        self,
        cfg: AttentionConfig,
        hidden_dim: int,
        layer_index: int,
        modifiers: Sequence[ModifierConfig] = (),
    ):
        super().__init__()
        self.cfg, self.layer_index = cfg, layer_index
        self.backend = BACKENDS[cfg.backend]
        width = cfg.width(hidden_dim)
        self.scale = width**-0.5 if cfg.scale is None else cfg.scale
        self.qkv = QKVProjection(
            hidden_dim, cfg.num_heads, cfg.kv_heads, width, bias=cfg.bias != "none"
        )
        self.q_norm = Norm(cfg.qk_norm, width) if cfg.qk_norm else nn.Identity()
        self.k_norm = Norm(cfg.qk_norm, width) if cfg.qk_norm else nn.Identity()
        self.o_proj = nn.Linear(cfg.num_heads * width, hidden_dim, bias=cfg.bias == "all")
        self.gates = Sites(
            ATTENTION_SITES,
            {m.site: build_modifier(m, cfg.site_shape(m.site, hidden_dim)) for m in modifiers},
        )
        self.backend_taps = Taps(BACKEND_TAPS)

    def forward(
        self, x: Float[Tensor, "B T D"], resid: Float[Tensor, "B T D"], context: Context
    ) -> Float[Tensor, "B T D"]:
        """The attention branch of x, the normed residual; `resid` is the raw one."""
        sources = Sources(x=x, resid=resid)
        q, k, v = self.qkv(x)
        q = sources.q = self.gates("q", q, sources)
        k = self.gates("k", k, sources)
        v = self.gates("v", v, sources)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.cfg.rope is not None:
            cos, sin = context.rotation(self.cfg.rope, q.shape[-1])
            q = rotate(q, cos, sin, self.cfg.rope.pairs)
            k = rotate(k, cos, sin, self.cfg.rope.pairs)
        q = self.gates("q_rot", q, sources)
        k = self.gates("k_rot", k, sources)
        if context.cache is not None:
            k, v = context.cache.append(self.layer_index, k, v)
        y, sources.lse = self.backend(
            q,
            k,
            v,
            mask=context.mask,
            window_tokens=self.cfg.window_tokens,
            scale=self.scale,
            dropout=self.cfg.dropout if self.training else 0.0,
            observe=self.backend_taps,
        )
        y = self.gates("sdpa", y, sources)
        y = self.o_proj(y.flatten(-2))
        return self.gates("out", y, sources)


def use_backend(module: nn.Module, name: str) -> None:
    """Switch every attention layer below `module` to another backend, e.g. eager for its taps."""
    for layer in module.modules():
        if isinstance(layer, Attention):
            layer.backend = BACKENDS[name]
