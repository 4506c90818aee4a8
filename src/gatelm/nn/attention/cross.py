"""A second sequence that attention reads: the states of an encoder, patches of an image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import Field

from gatelm.config import Config, ConfigError
from gatelm.nn.attention.masks import CrossMask
from gatelm.nn.cache import KVCache
from gatelm.nn.shapes import Bool, Float, Tensor


class CrossConfig(Config):
    """Cross attention: keys and values are made from a second sequence, queries from the text."""

    hidden_dim: int = Field(ge=1)
    """Width of the second sequence."""
    max_tokens: int = Field(ge=1)
    """Largest number of its tokens; costs are counted for this number."""


@dataclass(frozen=True)
class EncoderStates:
    """The second sequence of one forward; empty once a cache holds its keys and values."""

    states: Float[Tensor, "B M E"]
    valid: Bool[Tensor, "B M"] | None
    """False at padding; None: no padding."""
    mask: CrossMask

    def silence_padding(self, v: Float[Tensor, "B M K H"]) -> Float[Tensor, "B M K H"]:
        """Set the values of padding to 0, since a row that is all padding attends to them."""
        if self.valid is None:
            return v
        return v.masked_fill(~self.valid[..., None, None], 0.0)


def begin_cross(
    cfg: CrossConfig,
    second: Tensor | None,
    valid: Bool[Tensor, "B M"] | None,
    cache: KVCache | None,
    queries: Float[Tensor, "B T D"],
    encode: Callable[[Tensor, Tensor | None], Tensor] | None,
) -> EncoderStates:
    """Return the second sequence of one forward, as given or as held by the cache.

    encode: makes states of what is given; None: states are given.

    Raises:
        ConfigError: when none is given and none is cached.
        ValueError: when it is given and cached, or has another width or more tokens than `cfg`.
    """
    batch, num_new = queries.shape[:2]
    if cache is not None and cache.cross:
        if second is not None:
            raise ValueError("memory: the cache holds one; give it with the first tokens only")
        num_keys = next(iter(cache.cross.values()))[0].shape[1]
        mask = CrossMask(num_new, num_keys, cache.cross_valid, queries.device)
        return EncoderStates(queries.new_empty(batch, 0, cfg.hidden_dim), None, mask)
    if second is None:
        raise ConfigError("memory: layers with mixer.memory read a second sequence; give one")
    if second.shape[1] > cfg.max_tokens:
        raise ValueError(
            f"memory: {second.shape[1]} tokens, but mixer.memory.max_tokens is {cfg.max_tokens}"
        )
    states = second if encode is None else encode(second, valid)
    if states.shape[-1] != cfg.hidden_dim:
        raise ValueError(
            f"memory: its width is {states.shape[-1]}, mixer.memory.hidden_dim is {cfg.hidden_dim}"
        )
    if cache is not None:
        cache.cross_valid = valid
    mask = CrossMask(num_new, states.shape[1], valid, queries.device)
    return EncoderStates(states, valid, mask)
