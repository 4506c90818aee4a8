"""Who may attend to whom: causal order, documents and windows as one object per forward."""

from __future__ import annotations

import torch

from gatelm.nn.shapes import Bool, Int, Tensor

PADDING = -1
"""Document id of padding: padding is attended to by padding only."""


def positions_in_documents(documents: Int[Tensor, "B S"]) -> Int[Tensor, "B S"]:
    """Each token's index since its document began, 0-based.

    A document begins where its id differs from the one before it.
    """
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    start = torch.where(begins, index, 0).cummax(dim=1).values
    return index - start


class AttentionMask:
    """The mask of one forward, rendered on demand per window and remembered.

    Queries are the last T of S positions. Query i sees key j when 0 <= i - j (< window), and both
    carry the same document id.
    """

    def __init__(
        self,
        num_queries: int,
        num_keys: int,
        documents: Int[Tensor, "B S"] | None = None,
        device: torch.device | None = None,
    ):
        assert num_keys >= num_queries
        self.num_queries, self.num_keys = num_queries, num_keys
        self.documents = documents
        self.device = device if documents is None else documents.device
        self._dense: dict[int | None, Bool[Tensor, "b 1 T S"]] = {}

    def _reaches(self, window_tokens: int | None) -> bool:
        return window_tokens is None or window_tokens >= self.num_keys

    def is_plain_causal(self, window_tokens: int | None) -> bool:
        """Whether a kernel's own causal flag says it all."""
        return (
            self.documents is None
            and self._reaches(window_tokens)
            and self.num_queries == self.num_keys
        )

    def sees_everything(self, window_tokens: int | None) -> bool:
        """Whether no key is hidden: a single query at the end, one document, no window."""
        return self.documents is None and self._reaches(window_tokens) and self.num_queries == 1

    def dense(self, window_tokens: int | None) -> Bool[Tensor, "b 1 T S"]:
        """True where query i may attend to key j."""
        key = None if self._reaches(window_tokens) else window_tokens
        if key not in self._dense:
            offset = self.num_keys - self.num_queries
            i = torch.arange(offset, self.num_keys, device=self.device)[:, None]
            j = torch.arange(self.num_keys, device=self.device)[None, :]
            allowed = j <= i
            if key is not None:
                allowed = allowed & (i - j < key)
            allowed = allowed[None, None]
            if self.documents is not None:
                docs = self.documents
                same = docs[:, offset:, None] == docs[:, None, :]
                allowed = allowed & same[:, None]
            self._dense[key] = allowed
        return self._dense[key]
