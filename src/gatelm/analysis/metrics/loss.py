"""Metrics of next-token prediction."""

from __future__ import annotations

import math

from gatelm.analysis.loss import perplexity_of
from gatelm.analysis.metrics.metric import Metric, of_subject
from gatelm.analysis.statistics.totals import Totals


def _bits_per_byte(totals: Totals) -> float:
    if totals.bytes_per_token is None:
        return math.nan
    return totals.loss.loss() / math.log(2) / totals.bytes_per_token


LOSS = of_subject(
    "loss",
    Metric(
        "val_loss",
        "Validation loss",
        "Mean negative log-likelihood of the next token: sum over all held-out targets, divided by "
        "their number. Padding and positions without a target are left out.",
        "lower",
        "nats per token",
        read=lambda totals, mark="": totals.loss.loss(mark),
        by_mark=True,
        forced=True,
    ),
    Metric(
        "val_ppl",
        "Validation perplexity",
        "exp(validation loss), so weighted by tokens, not by windows.",
        "lower",
        read=lambda totals: perplexity_of(totals.loss.loss()),
    ),
)

TEXT = of_subject(
    "text",
    Metric(
        "val_bits_per_byte",
        "Validation bits per byte",
        "Validation loss / ln 2 / (UTF-8 bytes per token of the held-out text): comparable across "
        "tokenizers.",
        "lower",
        "bits per byte",
        read=_bits_per_byte,
    ),
)

ACCURACY = of_subject(
    "loss",
    Metric(
        "accuracy",
        "Next-token accuracy",
        "Share of targets to which the model gives its largest logit.",
        "higher",
        read=lambda totals, mark="": totals.loss.accuracy(mark),
        by_mark=True,
    ),
)
