"""The state that all layers of one forward share: mask, positions and cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from gatelm.nn.attention.cross import EncoderStates
from gatelm.nn.attention.masks import AttentionMask, document_starts, positions_in_documents
from gatelm.nn.attention.pattern import Pattern
from gatelm.nn.cache import KVCache, Slot
from gatelm.nn.ffn.routing import Routing
from gatelm.nn.positions.rope import RopeConfig, rotation
from gatelm.nn.shapes import Bool, Int, Tensor


@dataclass
class Context:
    """One forward's mask, positions and cache, handed to every layer."""

    mask: AttentionMask
    positions: Int[Tensor, "*B T"]
    cache: KVCache | None = None
    routing: Routing | None = None
    """Filled by layers with experts, where it is given."""
    encoder_states: EncoderStates | None = None
    """The second sequence, where the model reads one."""
    _rotations: dict[tuple[RopeConfig, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    _key_rotations: dict[tuple[RopeConfig, int], tuple[Tensor, Tensor]] = field(
        default_factory=dict
    )

    def slot(self, layer: int, pattern: Pattern) -> Slot:
        """Return the place of a layer's keys and values, and the mask of those that it returns."""
        mask = self.mask
        if pattern.keys == "cross":
            assert self.encoder_states is not None
            mask = self.encoder_states.mask
        return Slot(layer, pattern, mask, self.cache)

    def rotation(self, rope: RopeConfig, head_dim: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin (*B, T, rotary_dim/2) of the angles, computed once a forward."""
        key = (rope, head_dim)
        if key not in self._rotations:
            self._rotations[key] = rotation(rope, head_dim, self.positions)
        return self._rotations[key]

    def cache_unrotated(self, rope: RopeConfig) -> bool:
        """Whether keys go into the cache before they turn, as angles that change later need."""
        return self.cache is not None and rope.length_dependent

    def key_rotation(self, rope: RopeConfig, head_dim: int) -> tuple[Tensor, Tensor]:
        """Return cos and sin (*B, S, rotary_dim/2) of all keys, including cached ones."""
        key = (rope, head_dim)
        if key not in self._key_rotations:
            documents = self.mask.documents
            if documents is None:
                positions = torch.arange(self.mask.num_keys, device=self.positions.device)
            else:
                positions = positions_in_documents(documents)
            self._key_rotations[key] = rotation(rope, head_dim, positions)
        return self._key_rotations[key]

    @property
    def documents(self) -> Int[Tensor, "B T"] | None:
        """Document ids of this call's tokens; None: one document a row."""
        documents = self.mask.documents
        return None if documents is None else documents[:, -self.mask.num_queries :]

    def document_starts(self) -> Bool[Tensor, "B T"] | None:
        """Mark the tokens whose document differs from the previous token's, also a cached one's.

        The very first token of all starts one. A recurrent mixer forgets its state there. None: no
        token of this call but the very first starts one.
        """
        documents = self.mask.documents
        if documents is None:
            return None
        return document_starts(documents)[:, -self.mask.num_queries :]
