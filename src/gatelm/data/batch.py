"""The batch that a data source hands to the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

IGNORE = -100
"""The target of a position that has none; it takes no part in the loss."""


@dataclass(frozen=True)
class Batch:
    """Rows of tokens, with the target, document and marks of each token."""

    tokens: Int64[Tensor, "B T"]
    targets: Int64[Tensor, "B T"]
    """The next token, or IGNORE."""
    documents: Int64[Tensor, "B T"] | None = None
    """The document of each position, numbered from 0 in every row; -1 is padding.
    None: every row is one document without padding, or documents may see each other."""
    marks: dict[str, Bool[Tensor, "B T"]] = field(default_factory=dict)
    """Sets of query positions by name, such as "trigger"."""
    memory: Float[Tensor, "B M P"] | Int64[Tensor, "B M"] | None = None
    """A second sequence a row, such as patches of an image, for models that read one."""
    memory_mask: Bool[Tensor, "B M"] | None = None
    """False at the padding of the second sequence."""

    def __len__(self) -> int:
        """Number of rows."""
        return self.tokens.shape[0]

    @property
    def num_targets(self) -> int:
        """Number of positions that take part in the loss."""
        return int((self.targets != IGNORE).sum())

    def rows(self, start: int, stop: int) -> Batch:
        """Return the rows start..stop, for microbatches."""
        return self._each(lambda tensor: tensor[start:stop])

    def to(self, device: torch.device | str) -> Batch:
        """Copy the batch to another device."""
        return self._each(lambda tensor: tensor.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with every tensor changed by a function."""
        optional = (self.documents, self.memory, self.memory_mask)
        documents, memory, memory_mask = (None if t is None else change(t) for t in optional)
        marks = {name: change(mark) for name, mark in self.marks.items()}
        return Batch(
            change(self.tokens), change(self.targets), documents, marks, memory, memory_mask
        )

    @property
    def second(self) -> dict[str, Tensor | None]:
        """The second sequence as a decoder takes it, empty where there is none."""
        if self.memory is None:
            return {}
        return {"memory": self.memory, "memory_mask": self.memory_mask}
