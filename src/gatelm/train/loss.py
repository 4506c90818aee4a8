"""Cross-entropy summed over targets, without holding all logits at once."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from gatelm.data.batch import IGNORE, Batch

LOGIT_BYTES = 512 * 2**20
"""fp32 logits beyond this size are computed in chunks, and again in the backward pass."""


class LanguageModel(Protocol):
    """What the loss needs of a model: `gatelm.nn.model.Decoder`, or a stand-in."""

    def hidden(self, tokens: Tensor, *, documents: Tensor | None = None) -> Tensor: ...

    def logits(self, hidden: Tensor) -> Tensor: ...

    @property
    def head_weight(self) -> Tensor: ...


def sum_loss(model: LanguageModel, batch: Batch, *, logit_bytes: int = LOGIT_BYTES) -> Tensor:
    """Negative log-likelihood in nats, summed over the batch's targets; a fp32 scalar.

    The caller divides by the number of targets of the whole step, over all microbatches and
    processes: the mean of microbatch means is another quantity where they hold unequal numbers.
    """
    hidden = model.hidden(batch.tokens, documents=batch.documents).flatten(0, 1)
    targets = batch.targets.flatten()
    rows = max(1, logit_bytes // (4 * model.head_weight.shape[0]))
    if len(targets) <= rows:
        return _sum_cross_entropy(model, hidden, targets)
    parts = [
        checkpoint(
            _sum_cross_entropy,
            model,
            hidden[start : start + rows],
            targets[start : start + rows],
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for start in range(0, len(targets), rows)
    ]
    return torch.stack(parts).sum()


def _sum_cross_entropy(model: LanguageModel, hidden: Tensor, targets: Tensor) -> Tensor:
    logits = model.logits(hidden).float()
    return F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORE)
