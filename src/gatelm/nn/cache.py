"""The cache of earlier tokens: keys after norm, RoPE and gates, values, states."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.attention.pattern import Pattern
from gatelm.nn.shapes import Bool, Float, Int, Tensor


class Buffer:
    """A growing tensor of tokens, with room for more of them.

    capacity_tokens: room to begin with, where the length is known; beyond it, and without it, room
    grows by a half, so that a text of S tokens is copied a few times, not S times.
    """

    def __init__(self, capacity_tokens: int | None = None):
        self._capacity = capacity_tokens or 0
        self._room = torch.empty(0)
        self._length = 0

    @property
    def tokens(self) -> Float[Tensor, "B S *rest"]:
        """View of all appended tokens, valid until rows are reordered."""
        return self._room[:, : self._length]

    def append(self, new: Float[Tensor, "B T *rest"]) -> Float[Tensor, "B S *rest"]:
        """Append tokens, and return all of them.

        Where gradients are wanted all is copied, since the backward pass needs what it saw.
        """
        length = self._length + new.shape[1]
        needs_grad = new.requires_grad or (self._length > 0 and self._room.requires_grad)
        if torch.is_grad_enabled() and needs_grad:
            self._room = torch.cat((self.tokens, new), dim=1) if self._length else new
        else:
            if not self._length or length > self._room.shape[1]:
                self._grow(new, length)
            self._room[:, self._length : length] = new
        self._length = length
        return self.tokens

    def _grow(self, like: Float[Tensor, "B T *rest"], length: int) -> None:
        old = self.tokens if self._length else None
        room = max(length, self._capacity, self._room.shape[1] * 3 // 2 if self._length else 0)
        self._room = like.new_empty(like.shape[0], room, *like.shape[2:])
        if old is not None:
            self._room[:, : self._length] = old


@dataclass
class SlidingWindowCache:
    """Cache of the last window - 1 tokens, and of the first tokens that have left the window.

    first_index: index in the row of the tokens kept beside the last ones, -1 for none. Memory is
    bounded by the window whatever the length of the text.
    """

    k: Float[Tensor, "B L K H"]
    v: Float[Tensor, "B L K V"]
    first_index: Int[Tensor, "b n"] | None = None

    @property
    def num_first(self) -> int:
        """Number of tokens kept from the start of the document."""
        return 0 if self.first_index is None else self.first_index.shape[1]


def extend_window(
    kept: SlidingWindowCache | None,
    k: Float[Tensor, "B T K H"],
    v: Float[Tensor, "B T K V"],
    mask: AttentionMask,
    pattern: Pattern,
) -> tuple[Float[Tensor, "B L K H"], Float[Tensor, "B L K V"], AttentionMask, SlidingWindowCache]:
    """Return the keys and values that this call's queries reach, their mask, and what is kept."""
    assert pattern.window_tokens is not None
    index: Tensor | None = None
    if kept is not None:
        k, v = torch.cat((kept.k, k), dim=1), torch.cat((kept.v, v), dim=1)
        recent = k.shape[1] - kept.num_first
        if kept.first_index is None:
            mask = mask.last(recent)
        else:
            index = _with_recent(kept.first_index, mask, recent)
            mask = mask.at((pattern.window_tokens, pattern.first_tokens), index)
    keep = min(mask.num_tokens, pattern.window_tokens - 1)
    recent_k, recent_v = (t[:, t.shape[1] - keep :] for t in (k, v))
    if not pattern.first_tokens or mask.num_tokens <= keep:
        return k, v, mask, SlidingWindowCache(recent_k.clone(), recent_v.clone())
    first = _evicted_first(mask, pattern, keep)
    if index is None:
        index = torch.arange(mask.num_tokens - k.shape[1], mask.num_tokens, device=k.device)[None]
    at = (index[:, None, :] == first[:, :, None]).int().argmax(dim=-1)
    first_k, first_v = (_take(t, at) for t in (k, v))
    new = SlidingWindowCache(
        torch.cat((first_k, recent_k), 1), torch.cat((first_v, recent_v), 1), first
    )
    return k, v, mask, new


def _with_recent(first: Int[Tensor, "b n"], mask: AttentionMask, recent: int) -> Int[Tensor, "B L"]:
    """Return row indices of the first keys and of the `recent` last ones."""
    last = torch.arange(mask.num_tokens - recent, mask.num_tokens, device=first.device)
    return torch.cat((first, last.expand(len(first), -1)), dim=1)


def _evicted_first(mask: AttentionMask, pattern: Pattern, keep: int) -> Int[Tensor, "b n"]:
    """Return row indices of the first tokens of each row's last document; -1 if in the window."""
    begins = mask.num_tokens - 1 - mask.positions[:, -1:]
    first = begins + torch.arange(pattern.first_tokens, device=begins.device)
    return torch.where(first < mask.num_tokens - keep, first, -1)


def _take(t: Float[Tensor, "B L K H"], at: Int[Tensor, "b n"]) -> Float[Tensor, "B n K H"]:
    at = at.expand(len(t), -1)[..., None, None].expand(-1, -1, *t.shape[2:])
    return t.gather(1, at)


class KVCache:
    """Keys, values and states of all layers so far, and the document ids of their tokens.

    Gates at `k`, `k_rot` and `v` are stored applied; a gate at `sdpa` needs no state.
    """

    def __init__(self, capacity_tokens: int | None = None) -> None:
        """capacity_tokens: length of the whole text, if known: its memory is allocated at once."""
        self.capacity_tokens = capacity_tokens
        self.buffers: dict[int, tuple[Buffer, Buffer]] = {}
        """Keys and values of the layers that keep all of them."""
        self.windows: dict[int, SlidingWindowCache] = {}
        """Keys and values of the layers with a window."""
        self.cross: dict[int, tuple[Tensor, Tensor]] = {}
        """Keys and values of the second sequence, for the layers that read it."""
        self.cross_valid: Bool[Tensor, "B M"] | None = None
        self.states: dict[int, tuple[Tensor, ...]] = {}
        """The states of recurrent layers, rows first."""
        self.documents: Int[Tensor, "B S"] | None = None
        self.num_tokens = 0

    def extend_documents(
        self, documents: Int[Tensor, "B T"] | None, batch: int, num_new: int, device: torch.device
    ) -> Int[Tensor, "B S"] | None:
        """Return the document ids of all keys with `num_new` new ones; None if none were given.

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
        """Append one layer's new keys and values, and return all that are kept and their mask.

        A layer with a window keeps nothing that no later query can see.
        """
        if pattern.keys == "cross":
            return *self.cross.setdefault(layer, (k, v)), mask
        if pattern.window_tokens is not None:
            kept = self.windows.get(layer)
            k, v, mask, self.windows[layer] = extend_window(kept, k, v, mask, pattern)
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
        """Append the layer's new keys and values, or their latents, and return all kept."""
        if self.cache is not None:
            k, v, self.mask = self.cache.append(self.layer, k, v, self.mask, self.pattern)
        return k, v
