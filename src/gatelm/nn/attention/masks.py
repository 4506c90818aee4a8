"""The attention mask of one forward, made of order, documents and a layer's pattern."""

from __future__ import annotations

from typing import Any

import torch

from gatelm.nn.attention.pattern import Pattern
from gatelm.nn.shapes import Bool, Float, Int, Tensor

PADDING = -1
"""Document id of padding: padding is attended to by padding only."""


def document_starts(documents: Int[Tensor, "B S"]) -> Bool[Tensor, "B S"]:
    """Mark where a document begins: where the id differs from the last real token's.

    Padding between two tokens of one document does not end the document. A run of padding begins
    where padding does.
    """
    real = documents != PADDING
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    last_real = torch.where(real, index, 0).cummax(dim=1).values
    starts = torch.ones_like(real)
    starts[:, 1:] = torch.where(
        real[:, 1:],
        documents[:, 1:] != documents.gather(1, last_real)[:, :-1],
        real[:, :-1],
    )
    return starts


def positions_in_documents(documents: Int[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """Return the position of each real token in its document, 0-based; padding is not counted.

    Padding is counted apart, from where its run began.
    """
    real = documents != PADDING
    starts = document_starts(documents)

    def counted(kind: Bool[Tensor, "B S"]) -> Int[Tensor, "B S"]:
        index = kind.cumsum(dim=1) - 1
        return index - torch.where(starts & kind, index, 0).cummax(dim=1).values

    return torch.where(real, counted(real), counted(~real))


def has_holes(documents: Int[Tensor, "B S"]) -> bool:
    """Whether padding stands between two tokens of one document."""
    after_padding = torch.zeros_like(documents, dtype=torch.bool)
    after_padding[:, 1:] = documents[:, :-1] == PADDING
    return bool((after_padding & (documents != PADDING) & ~document_starts(documents)).any())


class AttentionMask:
    """The mask of one forward, rendered on demand per pattern and remembered.

    Queries are the last T of a row's tokens. Keys are all of them, S, or those that a cache kept:
    see `last` and `at`. Query i sees key j when both carry the same document id and the pattern
    allows it.
    """

    def __init__(
        self,
        num_queries: int,
        num_keys: int,
        documents: Int[Tensor, "B S"] | None = None,
        device: torch.device | None = None,
    ):
        assert num_keys >= num_queries
        self.num_queries, self.num_keys, self.num_tokens = num_queries, num_keys, num_keys
        self.documents = documents
        self.key_index: Int[Tensor, "b L"] | None = None
        self.device = device if documents is None else documents.device
        self._dense: dict[Pattern, Bool[Tensor, "b 1 T S"]] = {}
        self._biases: dict[Pattern, Float[Tensor, "b N T S"]] = {}
        self._kept: dict[object, AttentionMask] = {}
        self.rendered: dict[object, Any] = {}
        """Forms of the mask that backends have made for themselves."""
        self._positions: Tensor | None = None

    def is_plain_causal(self, pattern: Pattern) -> bool:
        """Whether a kernel's own causal flag describes the whole mask."""
        return self._is_ordered(pattern) and self.num_queries == self.num_keys

    def is_causal_tail(self, pattern: Pattern) -> bool:
        """Whether the queries are the last tokens of one text, and order alone decides."""
        own = pattern.keys == "own" and self.num_keys == self.num_tokens
        return own and self._is_ordered(pattern)

    def sees_everything(self, pattern: Pattern) -> bool:
        """Whether no key is hidden: one document, no window, and none after the query."""
        last = self.num_queries == 1 or pattern.direction == "full"
        return self._is_whole(pattern) and last

    def _is_ordered(self, pattern: Pattern) -> bool:
        """Whether a query sees all keys up to its own token."""
        return pattern.direction == "causal" and self._is_whole(pattern)

    def _is_whole(self, pattern: Pattern) -> bool:
        return (
            self.documents is None
            and pattern.alibi_slopes is None
            and pattern.hides_nothing(self.num_keys)
            and self.key_index is None
        )

    def dense(self, pattern: Pattern) -> Bool[Tensor, "b 1 T S"]:
        """Return True where query i may attend to key j."""
        key = pattern if self.key_index is not None else pattern.within(self.num_keys)
        if key not in self._dense:
            positions = self._pair(self.positions) if key.needs_positions else (None, None)
            allowed = key.sees(*self._pair(self._index()), *positions)
            if self.documents is not None:
                queries, keys = self._pair(self.documents)
                allowed = allowed & (queries == keys)
            if self.key_index is not None:
                allowed = allowed & (self.key_index >= 0)[:, None, :]
            self._dense[key] = allowed[:, None]
        return self._dense[key]

    def bias(self, pattern: Pattern) -> Float[Tensor, "b N T S"] | None:
        """Return what is added to the scaled scores, in float32; None for nothing."""
        if pattern.alibi_slopes is None:
            return None
        if pattern not in self._biases:
            slopes = torch.tensor(pattern.alibi_slopes, device=self.device)[:, None, None]
            queries, keys = self._pair(self._index())
            self._biases[pattern] = -slopes * (queries - keys).abs()[:, None]
        return self._biases[pattern]

    @property
    def positions(self) -> Int[Tensor, "b S"]:
        """The position of every token of the row in its document, 0-based."""
        if self._positions is None:
            if self.documents is None:
                self._positions = torch.arange(self.num_tokens, device=self.device)[None]
            else:
                self._positions = positions_in_documents(self.documents)
        return self._positions

    def last(self, num_keys: int) -> AttentionMask:
        """Return the mask of the same queries, with the last `num_keys` keys only."""
        if num_keys == self.num_keys:
            return self
        if num_keys not in self._kept:
            self._kept[num_keys] = self._copy()
            self._kept[num_keys].num_keys = num_keys
        return self._kept[num_keys]

    def at(self, key: object, index: Int[Tensor, "b L"]) -> AttentionMask:
        """Return the mask of the same queries, with the keys at `index` of the row, -1 for none.

        Layers that name the same `key` share one mask: their index is the same.
        """
        if key not in self._kept:
            self._kept[key] = self._copy()
            self._kept[key].key_index, self._kept[key].num_keys = index, index.shape[1]
        return self._kept[key]

    def _copy(self) -> AttentionMask:
        return AttentionMask(self.num_queries, self.num_tokens, self.documents, self.device)

    def _index(self) -> Int[Tensor, "1 S"]:
        return torch.arange(self.num_tokens, device=self.device)[None]

    def _pair(self, per_token: Int[Tensor, "b S"]) -> tuple[Tensor, Tensor]:
        """Split a row's values into the queries' (b,T,1) and the keys' (b,1,S)."""
        queries = per_token[:, self.num_tokens - self.num_queries :, None]
        if self.key_index is None:
            return queries, per_token[:, None, self.num_tokens - self.num_keys :]
        index = self.key_index.clamp(min=0)
        rows = max(len(index), len(per_token))
        keys = per_token.expand(rows, -1).gather(1, index.expand(rows, -1))
        return queries, keys[:, None, :]


class CrossMask(AttentionMask):
    """The mask of a second sequence: all but its padding is seen, whatever the pattern.

    valid: False at padding; a row without anything else sees its padding.
    """

    def __init__(
        self,
        num_queries: int,
        num_keys: int,
        valid: Bool[Tensor, "B M"] | None,
        device: torch.device | None,
    ):
        super().__init__(num_queries, max(num_queries, num_keys), device=device)
        self.num_keys, self.valid = num_keys, valid

    def is_plain_causal(self, pattern: Pattern) -> bool:
        """False: the orders of the two sequences are independent."""
        return False

    def sees_everything(self, pattern: Pattern) -> bool:
        """Whether every query sees every key: there is no padding then."""
        return self.valid is None

    def dense(self, pattern: Pattern) -> Bool[Tensor, "b 1 t M"]:
        """Return True where a key is no padding; the same for all queries."""
        if self.valid is None:
            return torch.ones(1, 1, 1, self.num_keys, dtype=torch.bool, device=self.device)
        return (self.valid | ~self.valid.any(dim=1, keepdim=True))[:, None, None, :]
