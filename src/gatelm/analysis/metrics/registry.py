"""Every metric by name. An entry in one of the files beside this one is all a metric needs.

The numbers of an analysis and of the health pass, the labels and definitions of tables, reports and
claims, and the check of a study's metrics follow from the entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from gatelm.analysis.metrics.activations import ACTIVATIONS
from gatelm.analysis.metrics.attention import ATTENTION, NORMS
from gatelm.analysis.metrics.causal import causal_metrics
from gatelm.analysis.metrics.details import DETAILS
from gatelm.analysis.metrics.experts import EXPERTS
from gatelm.analysis.metrics.gates import GATES
from gatelm.analysis.metrics.longer_metrics import DERIVED, KEPT, LongerName, parse_longer
from gatelm.analysis.metrics.loss import ACCURACY, LOSS, TEXT
from gatelm.analysis.metrics.metric import Metric, Subject
from gatelm.analysis.metrics.movement import MOVEMENT
from gatelm.analysis.metrics.run_metrics import OF_STUDIES, OF_TRAINING
from gatelm.config.base import nearest

_MEASURED = (
    *(*LOSS, *TEXT, *ACCURACY, *ATTENTION, *ACTIVATIONS, *NORMS),
    *(*GATES, *DETAILS, *MOVEMENT, *EXPERTS),
)

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (*_MEASURED, *causal_metrics(_MEASURED), *OF_TRAINING, *OF_STUDIES)
}
"""Metrics of an analysis, of training, and of a study's runs taken together, in the order in which
reports define them. A name may carry a mark: `accuracy_trigger`."""

CAUSAL_STEMS = tuple(metric.name for metric in _MEASURED if metric.forced)
"""Metrics that are measured again with the gates forced."""


def read_subject(
    subject: Subject, measured: Any, marks: Iterable[str] = (), *, only_health: bool = False
) -> dict[str, float]:
    """The numbers of one subject by name, those of marked positions last; no NaN is among them."""
    entries = [
        (metric, metric.read)
        for metric in METRICS.values()
        if metric.subject == subject and (metric.in_health or not only_health) and metric.read
    ]
    flat = {metric.name: read(measured) for metric, read in entries}
    for mark in marks:
        for metric, read in entries:
            if metric.by_mark:
                flat[f"{metric.name}_{mark}"] = read(measured, mark)
    return {name: value for name, value in flat.items() if not math.isnan(value)}


def split_mark(name: str) -> tuple[str, str | None]:
    """("accuracy", "trigger") of "accuracy_trigger"; the mark is None for a plain name."""
    if name in METRICS:
        return name, None
    marked = [metric.name for metric in METRICS.values() if metric.by_mark]
    for stem in sorted(marked, key=len, reverse=True):
        if name.startswith(f"{stem}_"):
            return stem, name.removeprefix(f"{stem}_")
    return name, None


def describe(name: str) -> Metric:
    """The metric of a name in result.json, restricted to marked positions where the name says so.

    Raises:
        ValueError: no metric has this name.
    """
    if (longer := parse_longer(name)) is not None:
        return _describe_longer(name, longer)
    stem, mark = split_mark(name)
    metric = METRICS.get(stem)
    if metric is None:
        raise ValueError(f"unknown metric {name!r}; {nearest(name, METRICS)}")
    if mark is None:
        return metric
    words = mark.replace("_", "-")
    return replace(
        metric,
        name=name,
        label=f"{metric.label}, {words} positions",
        definition=f"{metric.definition} Only {words} positions are counted.",
    )


def _describe_longer(name: str, longer: LongerName) -> Metric:
    """The metric of an analysis of rows longer than those of training."""
    if longer.stem in DERIVED:
        metric = DERIVED[longer.stem]
    elif longer.stem in KEPT:
        metric = describe(longer.stem)
    else:
        raise ValueError(f"unknown metric {name!r}; on longer rows: {', '.join((*KEPT, *DERIVED))}")
    return replace(
        metric,
        name=name,
        label=f"{metric.label}, {longer.words}",
        definition=f"{metric.definition} {longer.sentence}",
    )
