"""A metric: one entry with its name, its definition and the function that reads it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, float64, tensor

Subject = Literal[
    "loss", "text", "attention", "activations", "gates", "details", "other",
    "movement", "experts", "causal", "training", "study",
]  # fmt: skip
"""Subject of a metric. Metrics of the subjects up to "other" read the `Totals` of an analysis."""

COUNTED = (
    "Queries: all but the first of each document (it can only look at itself) and padding. "
    "Documents are those of the batch; a row that starts in the middle of a text counts as one."
)


@dataclass(frozen=True)
class Metric:
    """One entry of the registry: all that is known about a number.

    name: the key in result.json. better: the direction a reader hopes for, None if neither.
    read: the number, from what was measured; NaN where the metric does not apply. None: the number
        is computed elsewhere, from whole runs.
    by_mark: the metric also exists for marked positions; `read` takes the mark as second argument.
    in_health: the health pass of a training run reports the metric.
    forced: the metric is measured again with the gates forced.
    """

    name: str
    label: str
    definition: str
    better: Literal["lower", "higher"] | None = None
    unit: str | None = None
    read: Callable[..., float] | None = None
    by_mark: bool = False
    in_health: bool = False
    forced: bool = False
    subject: Subject = "other"


def of_subject(subject: Subject, *metrics: Metric) -> tuple[Metric, ...]:
    """Return the metrics, all with this subject."""
    return tuple(replace(metric, subject=subject) for metric in metrics)


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean; NaN without values or with a NaN among them."""
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else math.nan


def known_mean(values: Iterable[float]) -> float:
    """Mean of the values that are not NaN; NaN without any."""
    return mean(value for value in values if not math.isnan(value))


def largest(values: Iterable[float]) -> float:
    """Largest value; NaN if any value is NaN."""
    return float(tensor(list(values), dtype=float64).max())


def largest_known(values: Iterable[float]) -> float:
    """Largest of the values that are not NaN; NaN without any."""
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def mean_over_heads(layers: Iterable[Tensor]) -> float:
    """Mean over the heads of each layer, then over layers; NaN without layers."""
    return mean(float(heads.mean()) for heads in layers)
