"""Names and definitions of what is measured on rows longer than those of training.

`val_loss_beyond_at_4x_yarn_trained`: a metric, how many times the training length, the scaling of
rotary positions, and whether training went on at that length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gatelm.analysis.metrics.metric import Metric

_NAME = re.compile(
    r"(?P<stem>\w+?)_at_(?P<factor>\d+)x_(?P<method>[a-z][a-z0-9_]*?)(?P<on>_trained)?"
)

KEPT = (
    "val_loss",
    "val_loss_within",
    "val_loss_beyond",
    "accuracy_recall",
    "accuracy_trigger",
    "first_token_share",
    "first_token_share_non_trigger",
    "first_token_share_uniform",
    "sink_rate",
    "attention_entropy_normalized",
)
"""Metrics of an analysis of longer rows that result.json keeps, where they exist."""

DERIVED = {
    metric.name: metric
    for metric in (
        Metric(
            "val_loss_rise",
            "Rise of the loss beyond the training length",
            "Validation loss of the targets past the training length, minus that of the targets "
            "within it on the same rows without scaling, before any training at the new length.",
            "lower",
            "nats per token",
        ),
        Metric(
            "val_loss_cost",
            "Cost of the scaling within the training length",
            "Validation loss of the targets within the training length, minus the same without "
            "scaling and before any training at the new length.",
            "lower",
            "nats per token",
        ),
        Metric(
            "scaling_gain",
            "Gain of the scaling beyond the training length",
            "Validation loss of the targets past the training length without scaling, minus the "
            "same with it; where training went on at the new length, it did in both.",
            "higher",
            "nats per token",
        ),
    )
}
"""Differences that are taken run by run."""


@dataclass(frozen=True)
class LongerName:
    """A name in its parts."""

    stem: str
    factor: int
    method: str
    trained: bool

    def __str__(self) -> str:
        return f"{self.stem}_at_{self.factor}x_{self.method}{'_trained' if self.trained else ''}"

    @property
    def words(self) -> str:
        """The parts as words for a label: `4x, yarn, trained on`."""
        return f"{self.factor}x, {self.method}{', trained on' if self.trained else ''}"

    @property
    def sentence(self) -> str:
        """The sentence that is added to the definition of the metric."""
        how = "not scaled" if self.method == "none" else f"scaled by {self.method} for it"
        after = ", after more training at that length" if self.trained else ""
        return (
            f"Measured on rows of {self.factor} times the training length, positions {how}{after}."
        )


def parse_longer(name: str) -> LongerName | None:
    """Parse a metric's name into its parts; None for a name of another form."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return LongerName(found["stem"], int(found["factor"]), found["method"], bool(found["on"]))
