"""What all layers of one forward share: the mask, the positions, the cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from gatelm.nn.cache import KVCache, Slot
from gatelm.nn.masks import AttentionMask
from gatelm.nn.pattern import Pattern
from gatelm.nn.rope import RopeConfig, rotary_angles
from gatelm.nn.routing import Routing
from gatelm.nn.shapes import Bool, Int, Tensor


@dataclass
class Context:
    """One forward's mask, positions and cache, handed to every layer."""

    mask: AttentionMask
    positions: Int[Tensor, "*B T"]
    cache: KVCache | None = None
    routing: Routing | None = None
    """Filled by layers with experts, where it is given."""
    _rotations: dict[tuple[RopeConfig, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def slot(self, layer: int, pattern: Pattern) -> Slot:
        """Where a layer's keys and values go, and the mask of those that come back."""
        return Slot(layer, pattern, self.mask, self.cache)

    def rotation(self, rope: RopeConfig, head_dim: int) -> tuple[Tensor, Tensor]:
        """cos and sin (*B, T, rotary_dim/2) of the rotary angles, computed once a forward."""
        key = (rope, head_dim)
        if key not in self._rotations:
            angles = rotary_angles(rope, head_dim, self.positions)
            self._rotations[key] = (angles.cos(), angles.sin())
        return self._rotations[key]

    @property
    def documents(self) -> Int[Tensor, "B T"] | None:
        """Document ids of this call's tokens; None: one document a row."""
        documents = self.mask.documents
        return None if documents is None else documents[:, -self.mask.num_queries :]

    def document_starts(self) -> Bool[Tensor, "B T"] | None:
        """Where a token's document differs from that of the token before, cached ones included.

        The very first token of all starts one. A recurrent mixer forgets its state there. None: no
        token of this call but the very first starts one.
        """
        documents = self.mask.documents
        if documents is None:
            return None
        starts = torch.ones_like(documents, dtype=torch.bool)
        starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
        return starts[:, -self.mask.num_queries :]
