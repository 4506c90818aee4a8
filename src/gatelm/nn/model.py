"""The decoder: embedding, layers, final norm, head."""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import nn
from torch.nn import functional as F

from gatelm.config import Config, ConfigError
from gatelm.config.load import set_path
from gatelm.nn.attention.cross import CrossConfig, EncoderStates, begin_cross
from gatelm.nn.attention.masks import AttentionMask, positions_in_documents
from gatelm.nn.block import Block, LayerConfig
from gatelm.nn.cache import KVCache
from gatelm.nn.check import check_layer, cross_configs
from gatelm.nn.encoder import Encoder, EncoderConfig, check_cross
from gatelm.nn.ffn.routing import Routing
from gatelm.nn.forward_state import Context
from gatelm.nn.norm import NormConfig
from gatelm.nn.shapes import Bool, Float, Int, Tensor


class LayerOverride(Config):
    """Override of some layers: their indices, and config paths that differ from `model.layer`."""

    layers: str | tuple[int, ...]
    """Indices, or a slice such as "0:14", "::2", "-4:"."""
    set: dict[str, Any]
    """Paths below the layer, e.g. {gates: [], mixer.window_tokens: 256}."""

    def indices(self, num_layers: int) -> list[int]:
        """Return the 0-based indices of the layers.

        Raises:
            ValueError: for a slice that cannot be read, or an index that is no layer.
        """
        everything = range(num_layers)
        if isinstance(self.layers, str):
            try:
                bounds = [int(p) if p.strip() else None for p in self.layers.split(":")]
            except ValueError:
                bounds = []
            if not 2 <= len(bounds) <= 3:
                raise ValueError(
                    f"layers {self.layers!r}: expected a slice such as '0:14' or '::2'"
                )
            return list(everything[slice(*bounds)])
        for index in self.layers:
            if index not in everything:
                raise ValueError(f"layers: there is no layer {index}, only 0 to {num_layers - 1}")
        return list(self.layers)


class LearnedPositionsConfig(Config):
    """A learned vector per position, added to the embedding."""

    kind: Literal["learned"] = "learned"
    max_tokens: int = Field(ge=1)


class InitConfig(Config):
    """Initial weights outside gates, whose start is a value of each gate."""

    std: float = Field(default=0.02, gt=0)
    embedding_std: float | None = Field(default=None, gt=0)
    """Standard deviation of token and position embeddings; None: `std`."""
    residual_scale: Literal["none", "depth"] = "depth"
    """depth: W_o and W_down start 1/sqrt(2 num_layers) smaller (GPT-2)."""


class ModelConfig(Config):
    """A decoder-only language model."""

    vocab_size: int | None = Field(default=None, ge=1)
    """None: taken from the data."""
    hidden_dim: int = Field(ge=1)
    num_layers: int = Field(ge=1)
    layer: LayerConfig
    layer_overrides: tuple[LayerOverride, ...] = ()
    position_embedding: LearnedPositionsConfig | None = None
    head: Literal["tied", "untied"] = "tied"
    final_norm: NormConfig = NormConfig()
    init: InitConfig = InitConfig()
    encoder: EncoderConfig | None = None
    """The encoder of the second sequence, which layers with `mixer.memory` read; None: the
    sequence is given as states."""

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        checked: list[LayerConfig] = []
        for index, layer in enumerate(self.layers()):
            if layer not in checked:
                check_layer(layer, self.hidden_dim, index)
                checked.append(layer)
        check_cross(self.layers(), self.encoder)
        return self

    @property
    def cross(self) -> CrossConfig | None:
        """The config of the layers that read a second sequence; None: no layer does."""
        return next(cross_configs(self.layers()), None)

    def layers(self) -> tuple[LayerConfig, ...]:
        """Every layer's config, overrides applied in order."""
        trees: list[dict[str, Any] | None] = [None] * self.num_layers
        for override in self.layer_overrides:
            for index in override.indices(self.num_layers):
                tree = trees[index] if trees[index] is not None else self.layer.tree()
                assert tree is not None
                for path, value in override.set.items():
                    set_path(tree, path, value)
                trees[index] = tree
        return tuple(
            self.layer if tree is None else LayerConfig.parse(tree, f"layer {index}")
            for index, tree in enumerate(trees)
        )


class Decoder(nn.Module):
    """The language model: tokens (B,T) -> logits (B,T,V)."""

    def __init__(self, cfg: ModelConfig):
        super().__init__()
        if cfg.vocab_size is None:
            raise ConfigError("model.vocab_size: needed to build a model (training data sets it)")
        self.cfg = cfg
        self.embedding = nn.Embedding(cfg.vocab_size, cfg.hidden_dim)
        learned = cfg.position_embedding
        self.positions = nn.Embedding(learned.max_tokens, cfg.hidden_dim) if learned else None
        self.layers = nn.ModuleList(
            Block(layer, cfg.hidden_dim, index) for index, layer in enumerate(cfg.layers())
        )
        self.encoder = Encoder(cfg.encoder) if cfg.encoder else None
        self.cross = cfg.cross
        self.final_norm = cfg.final_norm.build(cfg.hidden_dim)
        self.head = (
            nn.Linear(cfg.hidden_dim, cfg.vocab_size, bias=False) if cfg.head == "untied" else None
        )

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        documents: Int[Tensor, "B T"] | None = None,
        cache: KVCache | None = None,
        memory: Float[Tensor, "B M E"] | Int[Tensor, "B M"] | None = None,
        memory_mask: Bool[Tensor, "B M"] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Return logits; see `hidden` for the arguments."""
        hidden = self.hidden(
            tokens, documents=documents, cache=cache, memory=memory, memory_mask=memory_mask
        )
        return self.logits(hidden)

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        *,
        documents: Int[Tensor, "B T"] | None = None,
        cache: KVCache | None = None,
        routing: Routing | None = None,
        memory: Float[Tensor, "B M E"] | Int[Tensor, "B M"] | None = None,
        memory_mask: Bool[Tensor, "B M"] | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Return the final normed states.

        documents: id of each token's document within its row; tokens see their own document only,
            and its positions count from 0. `masks.PADDING` marks padding. None: one document a row.
        cache: filled with this call's keys and values; the call's tokens follow those in it.
        routing: filled with what the routers of layers with experts do.
        memory: the second sequence, where layers read one: the encoder's input, or states where
            there is no encoder. With a cache it comes with the first tokens only. All documents of
            a row see it.
        memory_mask: False at its padding.
        """
        batch, num_new = tokens.shape
        num_old = cache.num_tokens if cache is not None else 0
        if cache is not None:
            documents = cache.extend_documents(documents, batch, num_new, tokens.device)
        if documents is None:
            positions = torch.arange(num_old, num_old + num_new, device=tokens.device)
        else:
            positions = positions_in_documents(documents)[:, num_old:]
        mask = AttentionMask(num_new, num_old + num_new, documents, tokens.device)
        x = self.embedding(tokens)
        if self.positions is not None:
            self._check_length(num_old + num_new)
            x = x + self.positions(positions)
        second = self._begin_cross(memory, memory_mask, cache, x)
        context = Context(mask, positions, cache, routing, second)
        for block in self.layers:
            x = block(x, context)
        if cache is not None:
            cache.commit(documents, num_new)
        return self.final_norm(x)

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return the scores over the vocabulary."""
        return F.linear(hidden, self.head_weight)

    @property
    def head_weight(self) -> Float[Tensor, "V D"]:
        """The head's matrix, which is the embedding's when tied."""
        return self.embedding.weight if self.head is None else self.head.weight

    def _begin_cross(
        self,
        second: Tensor | None,
        valid: Bool[Tensor, "B M"] | None,
        cache: KVCache | None,
        x: Float[Tensor, "B T D"],
    ) -> EncoderStates | None:
        if self.cross is not None:
            return begin_cross(self.cross, second, valid, cache, x, self.encoder)
        if second is not None:
            raise ValueError("memory: no layer reads one (mixer.memory); leave it out")
        return None

    def _check_length(self, num_tokens: int) -> None:
        learned = self.cfg.position_embedding
        if learned is not None and num_tokens > learned.max_tokens:
            raise ConfigError(
                f"{num_tokens} tokens, but model.position_embedding.max_tokens is "
                f"{learned.max_tokens}: raise it, or use rope"
            )
