"""What earlier tokens leave behind: keys after norm, RoPE and gates, values, states."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gatelm.nn.buffer import Buffer
from gatelm.nn.masks import AttentionMask
from gatelm.nn.pattern import Pattern
from gatelm.nn.ring import Ring, extend_ring
from gatelm.nn.shapes import Bool, Float, Int, Tensor


class KVCache:
    """Keys and values of all layers so far, and the document ids of their tokens.

    Gates at `k`, `k_rot` and `v` are stored applied; a gate at `sdpa` needs no state.
    """

    def __init__(self, capacity_tokens: int | None = None) -> None:
        """capacity_tokens: of the whole text, where it is known: room for it is made at once."""
        self.capacity_tokens = capacity_tokens
        self.buffers: dict[int, tuple[Buffer, Buffer]] = {}
        """Keys and values of the layers that keep all of them."""
        self.rings: dict[int, Ring] = {}
        """Those of layers with a window."""
        self.memories: dict[int, tuple[Tensor, Tensor]] = {}
        """Keys and values of a second sequence, by the layers that read it."""
        self.memory_valid: Bool[Tensor, "B M"] | None = None
        self.states: dict[int, tuple[Tensor, ...]] = {}
        """What a recurrent layer carries on, rows first; keys and values are not among it."""
        self.documents: Int[Tensor, "B S"] | None = None
        self.num_tokens = 0

    def extend_documents(
        self, documents: Int[Tensor, "B T"] | None, batch: int, num_new: int, device: torch.device
    ) -> Int[Tensor, "B S"] | None:
        """Document ids of all keys once `num_new` tokens are added; None while none were given.

        New tokens without ids continue each row's last document.
        """
        if documents is None and self.documents is None:
            return None
        old = self.documents
        if old is None:
            old = torch.zeros((batch, self.num_tokens), dtype=torch.long, device=device)
        if documents is None:
            documents = old[:, -1:].expand(batch, num_new)
        return torch.cat((old, documents), dim=1)

    def commit(self, documents: Int[Tensor, "B S"] | None, num_new: int) -> None:
        """Count the tokens that every layer has now appended."""
        self.documents = documents
        self.num_tokens += num_new

    def append(
        self,
        layer: int,
        k: Float[Tensor, "B T K H"],
        v: Float[Tensor, "B T K V"],
        mask: AttentionMask,
        pattern: Pattern,
    ) -> tuple[Float[Tensor, "B S K H"], Float[Tensor, "B S K V"], AttentionMask]:
        """Add one layer's new keys and values; returns all that are kept, and the mask of these.

        Of a layer with a window nothing is kept that no later query can see.
        """
        if pattern.keys == "memory":
            return *self.memories.setdefault(layer, (k, v)), mask
        if pattern.window_tokens is not None:
            k, v, mask, self.rings[layer] = extend_ring(self.rings.get(layer), k, v, mask, pattern)
            return k, v, mask
        if layer not in self.buffers:
            self.buffers[layer] = Buffer(self.capacity_tokens), Buffer(self.capacity_tokens)
        keys, values = self.buffers[layer]
        return keys.append(k), values.append(v), mask


@dataclass
class Slot:
    """One layer's place in the cache during one forward; without a cache nothing is kept.

    mask: that of the keys which `append` returned last.
    """

    layer: int
    pattern: Pattern
    mask: AttentionMask
    cache: KVCache | None

    def append(
        self, k: Float[Tensor, "B T K H"], v: Float[Tensor, "B T K V"]
    ) -> tuple[Float[Tensor, "B S K H"], Float[Tensor, "B S K V"]]:
        """Add the layer's new keys and values, or what they are made from; returns all kept."""
        if self.cache is not None:
            k, v, self.mask = self.cache.append(self.layer, k, v, self.mask, self.pattern)
        return k, v
