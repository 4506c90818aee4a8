"""One interface to text and synthetic data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from gatelm.data.batch import Batch
from gatelm.data.config import (
    AssociativeRecallConfig,
    BigramBackcopyConfig,
    DataConfig,
    PatchRecallConfig,
    TextDataConfig,
)
from gatelm.data.errors import DataError
from gatelm.data.order import sequence_indices
from gatelm.data.packing import RowPlan, fill_rows, plan_rows
from gatelm.data.patches import PatchRecallSource
from gatelm.data.prepare import PrepareProgress, prepare
from gatelm.data.shards import Prepared, TokenStream, open_prepared
from gatelm.data.synthetic import AssociativeRecallSource, BigramBackcopySource
from gatelm.data.tokenizer import Tokenizer


@runtime_checkable
class Source(Protocol):
    """The interface of a data source for training and analysis."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        ...

    @property
    def seq_len(self) -> int:
        """Number of tokens in a row."""
        ...

    @property
    def fingerprint(self) -> str:
        """Fingerprint that changes when any batch changes, apart from the seed."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None for a synthetic task, whose tokens have no text."""
        ...

    @property
    def bytes_per_token(self) -> float | None:
        """UTF-8 bytes of held-out text per target, EOS counted; None for synthetic tasks."""
        ...

    @property
    def sequences_per_epoch(self) -> int | None:
        """Number of training rows; None for an endless source."""
        ...

    @property
    def loss_floor(self) -> float | None:
        """Expected loss of the true process of a synthetic task, in nats per target."""
        ...

    @property
    def mark_floor(self) -> dict[str, float]:
        """The expected loss over the positions of each mark."""
        ...

    def batch(self, step: int, *, batch_size: int, rank: int = 0, world_size: int = 1) -> Batch:
        """Return this rank's rows of the global batch of `step` (from 0): a pure function.

        `batch_size` is the global one; ranks hold disjoint contiguous slices.
        """
        ...

    def validation(self, batch_size: int, max_sequences: int | None = None) -> Iterator[Batch]:
        """Return held-out batches, the same ones every time."""
        ...

    def decode_tokens(self, ids: list[int]) -> list[str]:
        """Return a display string for each id."""
        ...


class TextSource:
    """Source of rows packed from prepared shards, in an order that the seed decides."""

    def __init__(self, cfg: TextDataConfig, prepared: Prepared, seed: int) -> None:
        self.cfg, self.seed = cfg, seed
        self.seq_len = cfg.seq_len
        self.tokenizer = prepared.tokenizer
        self.vocab_size = prepared.manifest.vocab_size
        layout = f"{cfg.seq_len}-{cfg.packing}-{cfg.row_start}-{cfg.document_attention}"
        self.fingerprint = f"text-1-{prepared.manifest.fingerprint}-{layout}"
        self.loss_floor: float | None = None
        self.mark_floor: dict[str, float] = {}
        self._train, self._held_out = prepared.train, prepared.validation
        self._train_rows = self._plan(self._train)
        self._held_out_rows = self._plan(self._held_out)
        self.bytes_per_token = self._held_out.text_bytes / self._held_out.num_tokens
        self.sequences_per_epoch = len(self._train_rows)

    def batch(self, step: int, *, batch_size: int, rank: int = 0, world_size: int = 1) -> Batch:
        """Return this rank's rows of the global batch of a step."""
        indices = sequence_indices(
            self.seed,
            step,
            batch_size=batch_size,
            num_sequences=len(self._train_rows),
            rank=rank,
            world_size=world_size,
        )
        return self._make(self._train, self._train_rows, indices)

    def validation(self, batch_size: int, max_sequences: int | None = None) -> Iterator[Batch]:
        """Return held-out rows in stream order, evenly spaced if there are more than asked for."""
        total = len(self._held_out_rows)
        count = total if max_sequences is None else min(max_sequences, total)
        indices = np.arange(count) * total // max(count, 1)
        for start in range(0, count, batch_size):
            yield self._make(
                self._held_out, self._held_out_rows, indices[start : start + batch_size]
            )

    def decode_tokens(self, ids: list[int]) -> list[str]:
        """Return a display string for each id."""
        return self.tokenizer.display(ids)

    def _plan(self, stream: TokenStream) -> RowPlan:
        return plan_rows(stream, self.cfg.seq_len, self.cfg.packing, self.cfg.row_start)

    def _make(self, stream: TokenStream, rows: RowPlan, indices: np.ndarray) -> Batch:
        tokens, targets, documents = fill_rows(
            stream, rows, indices, bos_id=self.tokenizer.bos_id, eos_id=self.tokenizer.eos_id
        )
        if self.cfg.document_attention == "joined":
            documents = np.minimum(documents, 0)  # padding stays apart
        # rows of one document each need no mask beside the causal one, and attend faster
        masked = documents.any()
        return Batch(
            torch.from_numpy(tokens),
            torch.from_numpy(targets),
            torch.from_numpy(documents) if masked else None,
        )


def build_source(
    cfg: DataConfig,
    seed: int,
    *,
    report: Callable[[PrepareProgress], None] | None = None,
) -> Source:
    """Build the data of a run; text is prepared first, unless that was done before.

    Args:
        seed: decides the order of text, or the samples of a synthetic task.

    Raises:
        DataError: for data that cannot be used.
    """
    if seed < 0:
        raise DataError(f"seed: {seed} is negative; seeds are 0 or more")
    match cfg:
        case BigramBackcopyConfig():
            return BigramBackcopySource(cfg, seed)
        case AssociativeRecallConfig():
            return AssociativeRecallSource(cfg, seed)
        case PatchRecallConfig():
            return PatchRecallSource(cfg, seed)
        case TextDataConfig():
            return TextSource(cfg, _prepared(cfg, report), seed)


def _prepared(cfg: TextDataConfig, report: Callable[[PrepareProgress], None] | None) -> Prepared:
    if cfg.prepared is not None:
        return open_prepared(Path(cfg.prepared).expanduser())
    cache = None if cfg.cache is None else Path(cfg.cache).expanduser()
    return open_prepared(prepare(cfg, cache=cache, report=report).folder)
