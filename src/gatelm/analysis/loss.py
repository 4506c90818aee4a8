"""Loss and accuracy of the next token, with the logits of a few tokens in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from torch.nn import functional as F

from gatelm.analysis.probe.layout import Placed
from gatelm.analysis.statistics.precise import double
from gatelm.nn.shapes import Bool, Float, Int, Tensor

LOGITS_PER_BLOCK = 1 << 24
MAX_TOKENS_PER_BLOCK = 4096
"""Logits exist for this many tokens at a time, fewer with a large vocabulary."""


@runtime_checkable
class Head(Protocol):
    """A model that turns its final states into logits: a probe, a decoder, a `Prefill`."""

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return the logits of some states."""
        ...


def logit_blocks(
    model: Head, hidden: Float[Tensor, "t D"]
) -> Iterator[tuple[slice, Float[Tensor, "b V"]]]:
    """Yield the float32 logits of all states, one block at a time, with the block's place."""
    if not len(hidden):
        return
    vocab_size = model.logits(hidden[:1]).shape[-1]
    step = max(1, min(MAX_TOKENS_PER_BLOCK, LOGITS_PER_BLOCK // vocab_size))
    for start in range(0, len(hidden), step):
        block = slice(start, start + step)
        yield block, model.logits(hidden[block]).float()


@torch.no_grad()
def target_losses(
    model: Head, hidden: Float[Tensor, "t D"], targets: Int[Tensor, " t"]
) -> Float[Tensor, " t"]:
    """Loss of each target in nats, from the state that predicts it; float32, on the CPU."""
    losses = [
        F.cross_entropy(logits, targets[block], reduction="none").cpu()
        for block, logits in logit_blocks(model, hidden)
    ]
    return torch.cat(losses)


def perplexity_of(loss: float) -> float:
    """exp(loss); infinite where that is more than a float holds."""
    return math.exp(loss) if loss < 700 else math.inf


class LossTotals:
    """Sums of loss and hits over all targets, and over the targets of marked positions."""

    def __init__(self) -> None:
        self._loss: dict[str, float] = {}
        self._hits: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def add(self, model: Head, hidden: Float[Tensor, "B T D"], batch: Placed) -> None:
        """Add one batch, whose final states are `hidden`."""
        has_target = batch.targets >= 0
        sets = {"": has_target} | {name: has_target & mark for name, mark in batch.marks.items()}
        losses = torch.zeros_like(batch.targets, dtype=torch.float32)
        hits = torch.zeros_like(has_target)
        positions = has_target.flatten().nonzero().squeeze(-1)
        for block, logits in logit_blocks(model, hidden.flatten(0, 1)[positions]):
            targets = batch.targets.flatten()[positions[block]]
            losses.view(-1)[positions[block]] = F.cross_entropy(logits, targets, reduction="none")
            hits.view(-1)[positions[block]] = logits.argmax(dim=-1) == targets
        for name, where in sets.items():
            self._add(name, losses, hits, where)

    def _add(self, name: str, losses: Tensor, hits: Tensor, where: Bool[Tensor, "B T"]) -> None:
        self._loss[name] = self._loss.get(name, 0.0) + float(double(losses[where]).sum())
        self._hits[name] = self._hits.get(name, 0) + int(hits[where].sum())
        self._counts[name] = self._counts.get(name, 0) + int(where.sum())

    def marks(self) -> list[str]:
        """Names of the marks seen so far."""
        return [name for name in self._counts if name]

    def loss(self, mark: str = "") -> float:
        """Mean loss in nats per target; NaN without targets."""
        count = self._counts.get(mark, 0)
        return self._loss[mark] / count if count else float("nan")

    def accuracy(self, mark: str = "") -> float:
        """Share of targets that have the largest logit."""
        count = self._counts.get(mark, 0)
        return self._hits[mark] / count if count else float("nan")
