"""A second sequence that attention reads: the states of an encoder, patches of an image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import Field

from gatelm.config import Config, ConfigError
from gatelm.nn.attention.masks import MemoryMask
from gatelm.nn.cache import KVCache
from gatelm.nn.shapes import Bool, Float, Tensor


class MemoryConfig(Config):
    """Cross attention: keys and values are made from a second sequence, queries from the text."""

    hidden_dim: int = Field(ge=1)
    """Width of the second sequence."""
    max_tokens: int = Field(ge=1)
    """Its tokens at most; costs are counted for so many."""


@dataclass(frozen=True)
class Memory:
    """The second sequence of one forward: none of its tokens once a cache holds what is read."""

    states: Float[Tensor, "B M E"]
    valid: Bool[Tensor, "B M"] | None
    """False at padding; None: no padding."""
    mask: MemoryMask

    def silence_padding(self, v: Float[Tensor, "B M K H"]) -> Float[Tensor, "B M K H"]:
        """The values with those of padding at 0, which a row that is all padding attends to."""
        if self.valid is None:
            return v
        return v.masked_fill(~self.valid[..., None, None], 0.0)


def begin_memory(
    cfg: MemoryConfig,
    second: Tensor | None,
    valid: Bool[Tensor, "B M"] | None,
    cache: KVCache | None,
    queries: Float[Tensor, "B T D"],
    encode: Callable[[Tensor, Tensor | None], Tensor] | None,
) -> Memory:
    """The memory of one forward, from what is given or what the cache holds.

    encode: makes states of what is given; None: it is states.

    Raises:
        ConfigError: when none is given and none is cached.
        ValueError: when it is given and cached, or has another width or more tokens than `cfg`.
    """
    batch, num_new = queries.shape[:2]
    if cache is not None and cache.memories:
        if second is not None:
            raise ValueError("memory: the cache holds one; give it with the first tokens only")
        num_keys = next(iter(cache.memories.values()))[0].shape[1]
        mask = MemoryMask(num_new, num_keys, cache.memory_valid, queries.device)
        return Memory(queries.new_empty(batch, 0, cfg.hidden_dim), None, mask)
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
        cache.memory_valid = valid
    mask = MemoryMask(num_new, states.shape[1], valid, queries.device)
    return Memory(states, valid, mask)
