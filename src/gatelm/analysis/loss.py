"""Next-token loss and accuracy on held-out batches."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from gatelm.analysis.probe.layout import Placed
from gatelm.analysis.statistics.precise import double
from gatelm.nn.shapes import Bool, Float, Tensor

LOGITS_PER_BLOCK = 1 << 24
MAX_TOKENS_PER_BLOCK = 4096
"""Logits exist for this many tokens at a time, fewer with a large vocabulary."""


class LossTotals:
    """Sums of loss and hits over all targets, and over the targets of marked positions."""

    def __init__(self) -> None:
        self._loss: dict[str, float] = {}
        self._hits: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def add(self, model: Any, hidden: Float[Tensor, "B T D"], batch: Placed) -> None:
        """Add one batch; the model turns `hidden` into logits, a block of tokens at a time."""
        has_target = batch.targets >= 0
        sets = {"": has_target} | {name: has_target & mark for name, mark in batch.marks.items()}
        losses = torch.zeros_like(batch.targets, dtype=torch.float32)
        hits = torch.zeros_like(has_target)
        positions = has_target.flatten().nonzero().squeeze(-1)
        for block in positions.split(_tokens_per_block(model, hidden)):
            logits = model.logits(hidden.flatten(0, 1)[block]).float()
            targets = batch.targets.flatten()[block]
            losses.view(-1)[block] = F.cross_entropy(logits, targets, reduction="none")
            hits.view(-1)[block] = logits.argmax(dim=-1) == targets
        for name, where in sets.items():
            self._add(name, losses, hits, where)

    def _add(self, name: str, losses: Tensor, hits: Tensor, where: Bool[Tensor, "B T"]) -> None:
        self._loss[name] = self._loss.get(name, 0.0) + float(double(losses[where]).sum())
        self._hits[name] = self._hits.get(name, 0) + int(hits[where].sum())
        self._counts[name] = self._counts.get(name, 0) + int(where.sum())

    def marks(self) -> list[str]:
        return [name for name in self._counts if name]

    def loss(self, mark: str = "") -> float:
        """Mean loss in nats per target; NaN without targets."""
        count = self._counts.get(mark, 0)
        return self._loss[mark] / count if count else float("nan")

    def accuracy(self, mark: str = "") -> float:
        """Share of targets that have the largest logit."""
        count = self._counts.get(mark, 0)
        return self._hits[mark] / count if count else float("nan")


def _tokens_per_block(model: Any, hidden: Float[Tensor, "B T D"]) -> int:
    vocab_size = model.logits(hidden[0, :1]).shape[-1]
    return max(1, min(MAX_TOKENS_PER_BLOCK, LOGITS_PER_BLOCK // vocab_size))
