"""Adapter that lets our decoder use a cache of transformers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.attention.pattern import Pattern
from gatelm.nn.cache import KVCache, SlidingWindowCache
from gatelm.nn.shapes import Float, Int, Tensor


class StateLayer(CacheLayerMixin):
    """The states of one recurrent layer, as a layer of a cache of transformers."""

    is_sliding = False

    def __init__(self, states: tuple[Tensor, ...], num_tokens: int):
        super().__init__()
        self.states, self.num_tokens = states, num_tokens

    def lazy_initialization(self, key_states: Any, value_states: Any = None) -> None:
        """Do nothing: the layer is made with its states."""

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse: a recurrent layer has neither keys nor values."""
        raise ValueError("cache: a recurrent layer's state is not updated by keys and values")

    def get_seq_length(self) -> int:
        """Return the number of tokens that the states have read."""
        return self.num_tokens

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """See `DynamicLayer.get_mask_sizes`."""
        return self.num_tokens + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: there is no limit."""
        return -1

    get_max_cache_shape = get_max_length
    """Name of `get_max_length` before transformers 5.24."""

    def reset(self) -> None:
        """Set the states to zero."""
        self.states, self.num_tokens = tuple(torch.zeros_like(t) for t in self.states), 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Put the rows of the states into the order of `beam_idx`."""
        self.states = tuple(t.index_select(0, beam_idx.to(t.device)) for t in self.states)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row of the states `repeats` times."""
        self.states = tuple(t.repeat_interleave(repeats, dim=0) for t in self.states)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices` of the states."""
        self.states = tuple(t[indices] for t in self.states)

    def crop(self, *args: Any) -> None:
        """Refuse: tokens that a state has read cannot be taken out again."""
        raise ValueError("cache: a recurrent layer's state cannot be cut back to earlier tokens")


class SlidingWindowLayer(StateLayer):
    """The keys and values that a layer with a window keeps; their rows move like a state's."""

    @classmethod
    def of(cls, ring: SlidingWindowCache, num_tokens: int) -> SlidingWindowLayer:
        """Make a layer that holds the tensors of `ring`."""
        if ring.first_index is None:
            return cls((ring.k, ring.v), num_tokens)
        return cls((ring.k, ring.v, ring.first_index.expand(len(ring.k), -1)), num_tokens)

    @property
    def ring(self) -> SlidingWindowCache:
        """The states as our decoder's cache of a window."""
        return SlidingWindowCache(*self.states)

    def crop(self, *args: Any) -> None:
        """Refuse: tokens that have left the window are lost."""
        raise ValueError("cache: a window cannot be moved back to tokens that have left it")


class LibraryCache(KVCache):
    """Our decoder's cache, whose tensors live in `inner`, a cache that transformers reorders.

    documents: ids of all tokens, the cached and the new (B,S); None: no padding.
    """

    def __init__(self, inner: Cache, documents: Int[Tensor, "B S"] | None):
        super().__init__()
        if inner.is_compileable or any(inner.is_sliding):
            raise ValueError(
                f"cache: {type(inner).__name__} of this kind has another length than the text so "
                "far; use a DynamicCache, which is what generate makes by itself"
            )
        self.inner = inner
        self.num_tokens = inner.get_seq_length()
        self.documents = documents
        self.states = {
            index: layer.states
            for index, layer in enumerate(inner.layers)
            if isinstance(layer, StateLayer)
            and not isinstance(layer, SlidingWindowLayer)
            and layer.num_tokens > 0
        }
        self.windows = {
            index: layer.ring
            for index, layer in enumerate(inner.layers)
            if isinstance(layer, SlidingWindowLayer) and layer.num_tokens > 0
        }

    def commit(self, documents: Int[Tensor, "B S"] | None, num_new: int) -> None:
        """Count the tokens that every layer has now appended, and hand the states over."""
        super().commit(documents, num_new)
        layers = self.inner.layers
        own: dict[int, StateLayer] = {
            **{i: StateLayer(states, self.num_tokens) for i, states in self.states.items()},
            **{i: SlidingWindowLayer.of(ring, self.num_tokens) for i, ring in self.windows.items()},
        }
        for index, layer in own.items():
            while len(layers) <= index:
                layers.append(DynamicLayer())
            layers[index] = layer

    def extend_documents(
        self, documents: Int[Tensor, "B T"] | None, batch: int, num_new: int, device: torch.device
    ) -> Int[Tensor, "B S"] | None:
        """Return the document ids of all tokens, which came with the attention mask."""
        return self.documents

    def append(
        self,
        layer: int,
        k: Float[Tensor, "B T K H"],
        v: Float[Tensor, "B T K V"],
        mask: AttentionMask,
        pattern: Pattern,
    ) -> tuple[Float[Tensor, "B S K H"], Float[Tensor, "B S K V"], AttentionMask]:
        """Append one layer's new keys and values; returns all that are kept, and their mask."""
        if pattern.window_tokens is not None:
            return super().append(layer, k, v, mask, pattern)
        all_k, all_v = self.inner.update(k.transpose(1, 2), v.transpose(1, 2), layer)
        return all_k.transpose(1, 2), all_v.transpose(1, 2), mask
