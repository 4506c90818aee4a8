"""Softmax attention as values: the fields of its config and the sizes that follow from them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from gatelm.config import choice
from gatelm.nn.attention.backends import BACKENDS
from gatelm.nn.attention.cross import CrossConfig
from gatelm.nn.attention.pattern import BlockSparseConfig, Direction, Pattern
from gatelm.nn.attention.projections import LatentConfig
from gatelm.nn.gates.sites import SITES
from gatelm.nn.mixers.base import HeadShapes, MixerSettings
from gatelm.nn.norm import NormConfig
from gatelm.nn.positions.alibi import AlibiConfig
from gatelm.nn.positions.rope import RopeConfig

if TYPE_CHECKING:
    BackendName = str
else:
    BackendName = choice(BACKENDS, "backend")


class AttentionSettings(MixerSettings):
    """Fields of a layer of attention, and the sizes of its heads that follow from them."""

    linear_sites: ClassVar[tuple[str, ...]] = ("v", "sdpa", "out")

    kind: Literal["attention"] = "attention"
    num_heads: int = Field(ge=1)
    num_kv_heads: int | None = Field(default=None, ge=1)
    """Number of key and value heads; None: the same as of query heads."""
    head_dim: int | None = Field(default=None, ge=1)
    """None: hidden_dim / num_heads."""
    qk_norm: NormConfig | None = None
    """A norm over each query's and key's head_dim channels, before RoPE."""
    rope: RopeConfig | None = RopeConfig()
    position_bias: AlibiConfig | None = None
    """What is added to the scores for distance; in place of `rope`, which is then null."""
    projection: LatentConfig | None = None
    """Keys and values through a small latent; None: a matrix each for queries, keys and values."""
    window_tokens: int | None = Field(default=None, ge=1)
    """A query sees this many keys, itself included; None sees all before it."""
    first_tokens: int = Field(default=0, ge=0)
    """Number of keys at the start of a document that queries see beyond their window."""
    sparsity: BlockSparseConfig | None = None
    """Only some blocks of keys are seen; None: all keys in reach."""
    direction: Direction = "causal"
    """full: keys after the query are seen too; of encoders only."""
    memory: CrossConfig | None = None
    """Cross attention: keys and values of a second sequence; None: of the text itself."""
    bias: Literal["none", "qkv", "all"] = "none"
    scale: float | None = None
    """Factor on q k^T; None: 1/sqrt(head_dim)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of attention probabilities, in training."""
    backend: BackendName = Field(default="sdpa", json_schema_extra={"identity": False})

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads."""
        return self.num_kv_heads or self.num_heads

    @property
    def pattern(self) -> Pattern:
        """The keys that queries see, and what is added to their scores."""
        if self.memory is not None:
            return Pattern(direction="full", keys="cross")
        slopes = None if self.position_bias is None else self.position_bias.slopes(self.num_heads)
        return Pattern(self.window_tokens, self.first_tokens, self.sparsity, self.direction, slopes)

    def width(self, hidden_dim: int) -> int:
        """Number of channels of one head."""
        return self.head_dim or hidden_dim // self.num_heads

    def value_width(self, hidden_dim: int) -> int:
        """Number of channels of one head's values, and of its output."""
        of_latent = self.projection.value_dim if self.projection else None
        return of_latent or self.width(hidden_dim)

    def rotary_dim(self, hidden_dim: int) -> int:
        """Number of channels of one head that turn with the position."""
        return 0 if self.rope is None else self.rope.rotary_dim(self.width(hidden_dim))

    def heads(self, hidden_dim: int) -> HeadShapes:
        """Numbers of heads and their widths."""
        width, values = self.width(hidden_dim), self.value_width(hidden_dim)
        return HeadShapes(
            q=(self.num_heads, width),
            k=(self.kv_heads, width),
            v=(self.kv_heads, values),
            y=(self.num_heads, values),
        )

    def caches_latent(self, sites: Collection[str]) -> bool:
        """Whether the cache holds latents: a modifier at one of `sites` may stand in the way."""
        return self.projection is not None and not any(SITES[site].cached for site in sites)
