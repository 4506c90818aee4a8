"""Where each token stands in its document: what every statistic of a batch must agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor as AnyTensor

from gatelm.nn.attention.masks import PADDING, positions_in_documents
from gatelm.nn.shapes import Bool, Float, Int, Tensor


@runtime_checkable
class TokenBatch(Protocol):
    """The parts of a batch that an analysis reads; `gatelm.data.batch.Batch` has them.

    A batch with a second sequence also has `second`, the arguments of the decoder that reads it.
    """

    @property
    def tokens(self) -> AnyTensor:
        """Ids of the tokens (B,T), int64."""
        ...

    @property
    def targets(self) -> AnyTensor:
        """Ids of the targets (B,T), int64; targets below 0 have no loss."""
        ...

    @property
    def documents(self) -> AnyTensor | None:
        """Document ids (B,T) within the row, -1 for padding; or None."""
        ...

    @property
    def marks(self) -> Mapping[str, AnyTensor]:
        """Sets of query positions (B,T) by name."""
        ...


@dataclass(frozen=True)
class Placed:
    """A batch on the model's device."""

    tokens: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]
    documents: Int[Tensor, "B T"] | None
    marks: dict[str, Bool[Tensor, "B T"]]
    second: dict[str, AnyTensor | None] = field(default_factory=dict)
    """Arguments of a decoder that reads a second sequence."""

    @classmethod
    def on(cls, device: torch.device, batch: TokenBatch) -> Placed:
        """Move `batch` to `device`."""
        documents = None if batch.documents is None else batch.documents.to(device)
        marks = {name: mark.to(device) for name, mark in batch.marks.items()}
        second = getattr(batch, "second", {})
        moved = {name: None if t is None else t.to(device) for name, t in second.items()}
        return cls(batch.tokens.to(device), batch.targets.to(device), documents, marks, moved)

    def observe(self, probe: Any, observer: Any = None) -> Float[Tensor, "B T D"]:
        """Run a probe on the batch; see `probe.Probe.observe`."""
        return probe.observe(self.tokens, self.documents, observer, **self.second)

    def first_document(self, layout: Layout, max_tokens: int) -> Placed:
        """The first document of the first row, cut to at most `max_tokens` tokens, as a batch."""
        begins = layout.begins[0].nonzero()
        start = int(begins[0]) if len(begins) else 0
        stop = start + min(max_tokens, int(layout.document_tokens()[0, start]))
        second = {name: None if t is None else t[:1] for name, t in self.second.items()}
        cut = slice(start, stop)
        return Placed(self.tokens[:1, cut], self.targets[:1, cut], None, {}, second)


@dataclass(frozen=True)
class Layout:
    """Per key position: does it count, its 0-based position in its document, and the index of
    its document's first token. The first token is taken from the documents, never from index 0:
    padding may stand on either side."""

    valid: Bool[Tensor, "B S"]
    position: Int[Tensor, "B S"]
    first: Int[Tensor, "B S"]

    @classmethod
    def of(
        cls,
        documents: Int[Tensor, "B S"] | None,
        batch: int,
        num_keys: int,
        device: torch.device | None = None,
    ) -> Layout:
        """Build the layout from document ids; None: every row is one document without padding."""
        if documents is None:
            index = torch.arange(num_keys, device=device).expand(batch, num_keys)
            return cls(torch.ones_like(index, dtype=torch.bool), index, torch.zeros_like(index))
        index = torch.arange(num_keys, device=documents.device).expand_as(documents)
        position = positions_in_documents(documents)
        return cls(documents != PADDING, position, index - position)

    @property
    def begins(self) -> Bool[Tensor, "B S"]:
        """True at the first token of each document."""
        return self.valid & (self.position == 0)

    def document_tokens(self) -> Int[Tensor, "B S"]:
        """Length of each token's document."""
        lengths = torch.zeros_like(self.position)
        return lengths.scatter_add(1, self.first, torch.ones_like(lengths)).gather(1, self.first)
