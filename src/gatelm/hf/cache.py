"""A cache of transformers as the cache of our decoder."""

from __future__ import annotations

import torch
from transformers import Cache

from gatelm.nn.cache import KVCache
from gatelm.nn.masks import AttentionMask
from gatelm.nn.pattern import Pattern
from gatelm.nn.shapes import Float, Int, Tensor


class LibraryCache(KVCache):
    """Keys and values live in `inner`, where transformers reorders, repeats and crops them.

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

    def extend_documents(
        self, documents: Int[Tensor, "B T"] | None, batch: int, num_new: int, device: torch.device
    ) -> Int[Tensor, "B S"] | None:
        """The ids of all tokens, which came with the attention mask."""
        return self.documents

    def append(
        self,
        layer: int,
        k: Float[Tensor, "B T K H"],
        v: Float[Tensor, "B T K V"],
        mask: AttentionMask,
        pattern: Pattern,
    ) -> tuple[Float[Tensor, "B S K H"], Float[Tensor, "B S K V"], AttentionMask]:
        """Add one layer's new keys and values; returns all of them, and the mask of these."""
        all_k, all_v = self.inner.update(k.transpose(1, 2), v.transpose(1, 2), layer)
        return all_k.transpose(1, 2), all_v.transpose(1, 2), mask
