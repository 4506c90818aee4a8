"""A small encoder of the second sequence that a decoder with cross attention reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import nn

from gatelm.config import Config, ConfigError
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.attention.cross import CrossConfig
from gatelm.nn.attention.masks import PADDING, AttentionMask
from gatelm.nn.block import Block, LayerConfig
from gatelm.nn.check import check_layer, cross_configs
from gatelm.nn.forward_state import Context
from gatelm.nn.norm import NormConfig
from gatelm.nn.shapes import Bool, Float, Int, Tensor


class PatchesConfig(Config):
    """Input of vectors, such as patches of an image, through one matrix (arXiv 2010.11929)."""

    kind: Literal["patches"] = "patches"
    dim: int = Field(ge=1)
    """Numbers in a patch."""


class TokensConfig(Config):
    """Input of tokens, which have their own vocabulary."""

    kind: Literal["tokens"] = "tokens"
    vocab_size: int = Field(ge=1)


class EncoderConfig(Config):
    """Encoder layers over a second sequence; their attention usually has `direction: full`."""

    input: Annotated[PatchesConfig | TokensConfig, Field(discriminator="kind")]
    max_tokens: int = Field(ge=1)
    """Learned positions."""
    hidden_dim: int = Field(ge=1)
    num_layers: int = Field(default=1, ge=0)
    layer: LayerConfig
    final_norm: NormConfig = NormConfig()

    @model_validator(mode="after")
    def _check(self) -> EncoderConfig:
        check_layer(self.layer, self.hidden_dim, 0)
        if self.layer.attention.memory is not None:
            raise ConfigError("layer.mixer.memory: an encoder reads one sequence only")
        if self.layer.ffn.kind == "moe":
            raise ConfigError(
                "layer.ffn.kind: the load of an encoder's experts would not be balanced; use swiglu"
            )
        return self

    def input_parameters(self) -> int:
        """Number of entries of the embedding or the patches' matrix, and of the positions."""
        rows = self.input.vocab_size if isinstance(self.input, TokensConfig) else self.input.dim
        return (rows + self.max_tokens) * self.hidden_dim


class Encoder(nn.Module):
    """Encoder of patches (B,M,P) or tokens (B,M) into states (B,M,E)."""

    def __init__(self, cfg: EncoderConfig):
        super().__init__()
        self.cfg = cfg
        if isinstance(cfg.input, TokensConfig):
            self.input = nn.Embedding(cfg.input.vocab_size, cfg.hidden_dim)
        else:
            self.input = nn.Linear(cfg.input.dim, cfg.hidden_dim, bias=False)
        self.positions = nn.Embedding(cfg.max_tokens, cfg.hidden_dim)
        self.layers = nn.ModuleList(
            Block(cfg.layer, cfg.hidden_dim, index) for index in range(cfg.num_layers)
        )
        self.final_norm = cfg.final_norm.build(cfg.hidden_dim)

    def forward(
        self,
        second: Float[Tensor, "B M P"] | Int[Tensor, "B M"],
        valid: Bool[Tensor, "B M"] | None = None,
    ) -> Float[Tensor, "B M E"]:
        """Return the states of the second sequence; they are undefined at padding.

        Raises:
            ValueError: for more tokens than there are positions.
        """
        num_tokens = second.shape[1]
        if num_tokens > self.cfg.max_tokens:
            raise ValueError(
                f"memory: {num_tokens} tokens, but model.encoder.max_tokens is "
                f"{self.cfg.max_tokens}: raise it"
            )
        documents = None if valid is None else torch.where(valid, 0, PADDING)
        positions = torch.arange(num_tokens, device=second.device)
        x = self.input(second) + self.positions(positions)
        mask = AttentionMask(num_tokens, num_tokens, documents, second.device)
        context = Context(mask, positions)
        for block in self.layers:
            x = block(x, context)
        return self.final_norm(x)


def check_cross(layers: Sequence[LayerConfig], encoder: EncoderConfig | None) -> None:
    """Raises ConfigError for decoder layers and an encoder that do not fit each other."""
    for index, layer in enumerate(layers):
        if isinstance(layer.mixer, AttentionConfig) and layer.mixer.direction == "full":
            raise ConfigError(
                f"layer {index}: mixer.direction: full shows a decoder the tokens that it is to "
                "predict; use causal"
            )
    found = list(cross_configs(layers))
    if any(cross != found[0] for cross in found):
        raise ConfigError("mixer.memory: the layers that read a second sequence describe two")
    if encoder is None:
        return
    if not found:
        raise ConfigError("encoder: no layer reads it; set mixer.memory in one, or leave it out")
    made = CrossConfig(hidden_dim=encoder.hidden_dim, max_tokens=encoder.max_tokens)
    if found[0] != made:
        raise ConfigError(
            f"mixer.memory: the encoder's states are hidden_dim {made.hidden_dim} and max_tokens "
            f"{made.max_tokens}; say the same"
        )
