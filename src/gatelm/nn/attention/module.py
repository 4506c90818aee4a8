"""Softmax attention: the one forward, with its sites."""

from __future__ import annotations

from typing import Literal

from torch import nn

from gatelm.nn.attention.backends import BACKENDS
from gatelm.nn.attention.projections import LatentProjection, QKVProjection
from gatelm.nn.attention.settings import AttentionSettings
from gatelm.nn.forward_state import Context
from gatelm.nn.gates.gate import GateConfig
from gatelm.nn.gates.sites import BACKEND_TAPS, Sources, Taps
from gatelm.nn.mixers.base import Modifiers
from gatelm.nn.positions.rope import rotate
from gatelm.nn.shapes import Float, Tensor


class Attention(nn.Module):
    """Softmax attention; every variant is a value in its config or a modifier at a site."""

    def __init__(
        self,
        cfg: AttentionSettings,
        hidden_dim: int,
        layer_index: int,
        modifiers: Modifiers = (),
    ):
        super().__init__()
        self.cfg, self.layer_index = cfg, layer_index
        self.backend, self.pattern = BACKENDS[cfg.backend], cfg.pattern
        width = cfg.width(hidden_dim)
        self.scale = width**-0.5 if cfg.scale is None else cfg.scale
        if cfg.projection is None:
            bias = cfg.bias != "none"
            self.qkv = QKVProjection(
                hidden_dim, cfg.num_heads, cfg.kv_heads, width, bias, cfg.memory
            )
        else:
            cached = "latent" if cfg.caches_latent([m.site for m in modifiers]) else "keys"
            rotary_dim = cfg.rotary_dim(hidden_dim)
            self.qkv = LatentProjection(
                cfg.projection, hidden_dim, cfg.num_heads, width, rotary_dim, cached
            )
        self.q_norm = cfg.qk_norm.build(width) if cfg.qk_norm else nn.Identity()
        self.k_norm = cfg.qk_norm.build(width) if cfg.qk_norm else nn.Identity()
        values = cfg.num_heads * cfg.value_width(hidden_dim)
        self.o_proj = nn.Linear(values, hidden_dim, bias=cfg.bias == "all")
        self.gates = cfg.build_sites(hidden_dim, modifiers)
        wanted = any(isinstance(m, GateConfig) and m.needs_lse for m in modifiers)
        self.lse: Literal["skip", "return"] = "return" if wanted else "skip"
        self.backend_taps = Taps(BACKEND_TAPS)

    def forward(
        self, x: Float[Tensor, "B T D"], resid: Float[Tensor, "B T D"], context: Context
    ) -> Float[Tensor, "B T D"]:
        """Compute the attention branch of x, the normed residual; `resid` is the raw one."""
        sources = Sources(x=x, resid=resid)
        q, k, v, latent = self.qkv(x, context.encoder_states)
        q = sources.q = self.gates("q", q, sources)
        k = self.gates("k", k, sources)
        v = self.gates("v", v, sources)
        q, k = self.q_norm(q), self.k_norm(k)
        rope, width = self.cfg.rope, q.shape[-1]
        if rope is not None:
            cos, sin = context.rotation(rope, width)
            q = rotate(q, cos, sin, rope.pairs)
            k = k if context.cache_unrotated(rope) else rotate(k, cos, sin, rope.pairs)
        q = sources.q_rot = self.gates("q_rot", q, sources)
        k = self.gates("k_rot", k, sources)
        slot = context.slot(self.layer_index, self.pattern)
        k, v = self.qkv.extend(slot, k, v, latent)
        if rope is not None and context.cache_unrotated(rope):
            k = rotate(k, *context.key_rotation(rope, width), rope.pairs)
        y, sources.lse = self.backend(
            q,
            k,
            v,
            mask=slot.mask,
            pattern=self.pattern,
            scale=self.scale,
            dropout=self.cfg.dropout if self.training else 0.0,
            observe=self.backend_taps,
            lse=self.lse,
        )
        y = self.gates("sdpa", y, sources)
        y = self.o_proj(y.flatten(-2))
        return self.gates("out", y, sources)


def use_backend(module: nn.Module, name: str) -> None:
    """Switch every attention layer below `module` to another backend, e.g. eager for its taps."""
    for layer in module.modules():
        if isinstance(layer, Attention):
            layer.backend = BACKENDS[name]
