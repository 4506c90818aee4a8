"""What a data source hands to the model."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

IGNORE = -100
"""The target of a position that has none; it takes no part in the loss."""


@dataclass(frozen=True)
class Batch:
    """Rows of tokens and what follows each of them."""

    tokens: Tensor
    """(B, T) int64."""
    targets: Tensor
    """(B, T) int64: the next token, or IGNORE."""
    documents: Tensor | None = None
    """(B, T) int64: the document of each position, numbered from 0 in every row; -1 is padding.
    None: every row is one document without padding, or documents may see each other."""
    marks: dict[str, Tensor] = field(default_factory=dict)
    """(B, T) bool by name: sets of query positions, such as "trigger"."""

    def __len__(self) -> int:
        return self.tokens.shape[0]

    @property
    def num_targets(self) -> int:
        """Positions that take part in the loss."""
        return int((self.targets != IGNORE).sum())

    def rows(self, start: int, stop: int) -> Batch:
        """The rows start..stop, for microbatches."""
        cut = slice(start, stop)
        documents = None if self.documents is None else self.documents[cut]
        marks = {name: mark[cut] for name, mark in self.marks.items()}
        return Batch(self.tokens[cut], self.targets[cut], documents, marks)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        documents = None if self.documents is None else self.documents.to(device)
        marks = {name: mark.to(device) for name, mark in self.marks.items()}
        return Batch(self.tokens.to(device), self.targets.to(device), documents, marks)
