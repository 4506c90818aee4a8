"""One decoder layer: a mixer and a feed-forward network on a residual stream."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator
from torch import nn
from torch.nn import functional as F

from gatelm.config import Config, ConfigError, nearest
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.ffn.config import FFNConfig, MLPConfig, SwiGLUConfig
from gatelm.nn.forward_state import Context
from gatelm.nn.gates.gate import ModifierConfig, SiteShape
from gatelm.nn.gates.presets import GATE_PRESETS
from gatelm.nn.gates.sites import (
    ATTENTION_SITES,
    BLOCK_SITES,
    BLOCK_TAPS,
    SITES,
    Sites,
    Sources,
    Taps,
)
from gatelm.nn.mixers.config import MixerConfig
from gatelm.nn.norm import NormConfig
from gatelm.nn.shapes import Float, Tensor


class LayerConfig(Config):
    """One decoder layer."""

    mixer: MixerConfig
    ffn: FFNConfig
    gates: tuple[ModifierConfig, ...] = ()
    """What sits at the sites, at most one each: preset names or full configs."""
    norm: NormConfig = NormConfig()
    norm_placement: Literal["pre", "sandwich"] = "pre"
    """sandwich: also a norm on each branch before it is added (arXiv 2105.13290)."""
    residual_dropout: float = Field(default=0.0, ge=0, lt=1)

    @field_validator("gates", mode="before")
    @classmethod
    def _presets_by_name(cls, value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            return value
        for name in value:
            if isinstance(name, str) and name not in GATE_PRESETS:
                raise ValueError(f"unknown gate preset {name!r}; {nearest(name, GATE_PRESETS)}")
        return tuple(GATE_PRESETS[v] if isinstance(v, str) else v for v in value)

    @property
    def attention(self) -> AttentionConfig:
        """The mixer of a layer of softmax attention.

        Raises:
            ConfigError: for a layer with another mixer.
        """
        if not isinstance(self.mixer, AttentionConfig):
            raise ConfigError(f"mixer.kind: {self.mixer.kind!r}, where softmax attention is needed")
        return self.mixer

    @property
    def dense_ffn(self) -> SwiGLUConfig | MLPConfig:
        """The feed-forward network of a layer whose every token passes the same one.

        Raises:
            ConfigError: for a layer with another one, or none.
        """
        if not isinstance(self.ffn, SwiGLUConfig | MLPConfig):
            raise ConfigError(f"ffn.kind: {self.ffn.kind!r}, where swiglu or mlp is needed")
        return self.ffn

    def site_shape(self, site: str, hidden_dim: int) -> SiteShape:
        """Return the shape of the tensor at `site`, as a gate there needs it."""
        return self.mixer.site_shape(site, hidden_dim)

    def weights_behind(self, site: str) -> tuple[str, ...]:
        """Return the names of the block's weights that absorb a factor on the tensor at `site`.

        They are those of the linear map through which the tensor passes next, and its bias where
        the tensor is that map's output. Empty where no linear map follows.
        """
        module = SITES[site].folds_into
        if SITES[site].owner == "block":
            return tuple(f"{module}.{name}" for name in self.ffn.output_weights())
        if module is None or site not in self.mixer.linear_sites:
            return ()
        scales_bias = SITES[site].tensor == "branch" and getattr(self.mixer, "bias", "") == "all"
        return (f"{module}.weight", f"{module}.bias") if scales_bias else (f"{module}.weight",)


class Block(nn.Module):
    """Norm, mixer, add; norm, feed-forward, add; taps in between.

    `attn` is the mixer, softmax attention or another.
    """

    def __init__(self, cfg: LayerConfig, hidden_dim: int, layer_index: int):
        super().__init__()
        self.cfg, self.layer_index = cfg, layer_index
        at_mixer = [m for m in cfg.gates if m.site in ATTENTION_SITES]
        at_block = [m for m in cfg.gates if m.site in BLOCK_SITES]
        sandwich = cfg.norm_placement == "sandwich"
        self.attn_norm = cfg.norm.build(hidden_dim)
        self.attn = cfg.mixer.build(hidden_dim, layer_index, at_mixer)
        self.attn_post_norm = cfg.norm.build(hidden_dim) if sandwich else nn.Identity()
        self.ffn = None
        if (ffn := cfg.ffn.build(hidden_dim, layer_index)) is not None:
            self.ffn_norm = cfg.norm.build(hidden_dim)
            self.ffn = ffn
            self.ffn_post_norm = cfg.norm.build(hidden_dim) if sandwich else nn.Identity()
        self.gates = Sites(BLOCK_SITES, at_block, lambda site: cfg.site_shape(site, hidden_dim))
        self.taps = Taps(BLOCK_TAPS)

    def forward(self, resid: Float[Tensor, "B T D"], context: Context) -> Float[Tensor, "B T D"]:
        """Return the residual stream after the layer."""
        resid = self.taps("resid_in", resid)
        x = self.taps("normed", self.attn_norm(resid))
        branch = self.attn_post_norm(self.attn(x, resid, context))
        resid = self.taps("resid_mid", resid + self._drop(branch))
        if self.ffn is not None:
            x = self.taps("ffn_in", self.ffn_norm(resid))
            branch = self.gates("ffn", self.ffn(x, context), Sources(x=x, resid=resid))
            resid = resid + self._drop(self.ffn_post_norm(branch))
        return self.taps("resid_out", resid)

    def _drop(self, branch: Tensor) -> Tensor:
        rate = self.cfg.residual_dropout
        return F.dropout(branch, rate, self.training) if rate and self.training else branch
