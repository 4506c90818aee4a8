"""Softmax attention: the one forward, with its sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field
from torch import nn

from gatelm.config import Config, ConfigError, choice
from gatelm.nn.backends import BACKENDS
from gatelm.nn.context import Context
from gatelm.nn.gate import GateConfig, ModifierConfig, SiteShape, build_modifier
from gatelm.nn.norm import Norm, NormConfig
from gatelm.nn.parts import Part
from gatelm.nn.projections import QKVProjection
from gatelm.nn.rope import RopeConfig, rotate
from gatelm.nn.shapes import Float, Tensor
from gatelm.nn.sites import ATTENTION_SITES, BACKEND_TAPS, Sites, Sources, Taps

if TYPE_CHECKING:
    BackendName = str
else:
    BackendName = choice(BACKENDS, "backend")


class AttentionConfig(Config):
    """Grouped-query softmax attention."""

    sites: ClassVar[tuple[str, ...]] = ATTENTION_SITES

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

    def part(self, hidden_dim: int) -> Part:
        """Parameters without those of the gates."""
        width = self.width(hidden_dim)
        queries, keys = self.num_heads * width, self.kv_heads * width
        bias = {"none": 0, "qkv": queries + 2 * keys, "all": queries + 2 * keys + hidden_dim}
        on_heads = 2 * self.qk_norm.num_weights(width) if self.qk_norm else 0
        return Part(hidden_dim * (2 * queries + 2 * keys), bias[self.bias], on_heads)

    def mixing_flops_per_token(self, hidden_dim: int, seq_len: int) -> int:
        """Of the whole T x T square, as kernels' counters do: no discount for causality."""
        return 4 * self.num_heads * self.width(hidden_dim) * seq_len

    def cached_values(self, hidden_dim: int, num_tokens: int) -> int:
        """Keys and values of `num_tokens` tokens; gates add none."""
        return 2 * self.kv_heads * self.width(hidden_dim) * num_tokens

    def check(self, hidden_dim: int, where: str) -> None:
        """Raises ConfigError, naming `where`, for values that cannot work together."""
        if self.head_dim is None and hidden_dim % self.num_heads:
            raise ConfigError(
                f"{where}.num_heads: hidden_dim {hidden_dim} is not a multiple of "
                f"{self.num_heads} heads; change one of them, or set mixer.head_dim"
            )
        if self.num_heads % self.kv_heads:
            raise ConfigError(
                f"{where}.num_kv_heads: {self.num_heads} query heads cannot be divided among "
                f"{self.kv_heads} key/value heads; use a divisor of {self.num_heads}"
            )
        if self.rope is not None:
            self.rope.check(self.width(hidden_dim), where)
        if self.dropout and not BACKENDS[self.backend].capabilities.dropout:
            raise ConfigError(f"{where}.dropout: the {self.backend} backend has none")

    def check_gate(self, gate: GateConfig, where: str) -> None:
        """Raises ConfigError for a gate that cannot work here."""
        if gate.needs_lse and not BACKENDS[self.backend].capabilities.lse:
            able = [name for name, b in BACKENDS.items() if b.capabilities.lse]
            raise ConfigError(
                f"{where}.inputs: lse is not returned by mixer.backend {self.backend!r}; "
                f"use {' or '.join(able)}"
            )
        scales = gate.granularity == "head" and gate.operation == "mul"
        if scales and gate.site in ("q", "k") and self.qk_norm is not None:
            raise ConfigError(
                f"{where}: a headwise gate at {gate.site!r} is undone by mixer.qk_norm, which "
                f"rescales each head; use site {gate.site}_rot, or granularity element"
            )


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
