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
    memory: Tensor | None = None
    """A second sequence a row, such as patches of an image (B, M, P), for models that read one."""
    memory_mask: Tensor | None = None
    """(B, M) bool, False at its padding."""

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
        memory = [None if t is None else t[cut] for t in (self.memory, self.memory_mask)]
        return Batch(self.tokens[cut], self.targets[cut], documents, marks, *memory)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        documents = None if self.documents is None else self.documents.to(device)
        marks = {name: mark.to(device) for name, mark in self.marks.items()}
        memory = [None if t is None else t.to(device) for t in (self.memory, self.memory_mask)]
        return Batch(self.tokens.to(device), self.targets.to(device), documents, marks, *memory)

    @property
    def second(self) -> dict[str, Tensor | None]:
        """The second sequence as a decoder takes it, empty where there is none."""
        if self.memory is None:
            return {}
        return {"memory": self.memory, "memory_mask": self.memory_mask}
