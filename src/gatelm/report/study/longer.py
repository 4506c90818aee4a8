"""Charts of what a study measured on rows longer than those of training: means by length."""

from __future__ import annotations

from typing import Any

from gatelm.analysis.metrics.longer_metrics import DERIVED, LongerName, parse_longer
from gatelm.report.charts import intervals
from gatelm.report.charts.theme import Palette
from gatelm.report.load import StudyPart
from gatelm.report.metrics import describe
from gatelm.report.page import Figure
from gatelm.study.results.numbers import is_number, rounded
from gatelm.study.results.statistics import mean_interval

STEMS = ("accuracy_recall", *DERIVED)
"""Metrics that may be drawn: the first one that a part asks for is."""


def longer_figures(part: StudyPart, palette: Palette) -> list[Figure]:
    """Draw for each scaling the means over seeds by the length, in multiples of training's."""
    asked = [name for metric in part.metrics if (name := parse_longer(metric)) is not None]
    untrained = [name for name in asked if not name.trained]
    stem = next((s for s in STEMS if any(name.stem == s for name in untrained)), None)
    if stem is None or any(run.axes for run in part.runs):
        return []
    known = {n for run in part.finished() for metric in run.metrics if (n := parse_longer(metric))}
    methods = dict.fromkeys(name.method for name in untrained if name.stem == stem)
    out = []
    for method in methods:
        names = sorted(
            (n for n in known if (n.stem, n.method, n.trained) == (stem, method, False)),
            key=lambda name: name.factor,
        )
        rows = [row for name in names for row in _means(part, name)]
        if rows:
            metric = describe(str(names[0]))
            ending = f", {names[0].words}"
            chart = intervals.along_axis(
                rows,
                palette,
                title=f"{metric.label.removesuffix(ending)}: {method}",
                x_title="times the training length",
                y_title=metric.axis.replace(ending, ""),
            )
            out.append(Figure(f"{part.name}-{stem}-{method}-by-length", chart, "Bars: intervals."))
    return out


def _means(part: StudyPart, name: LongerName) -> list[dict[str, Any]]:
    rows = []
    for arm in part.arms:
        values = [run.metrics.get(str(name)) for run in part.finished() if run.arm == arm]
        found = mean_interval([v for v in values if is_number(v)], part.spec.confidence)
        if found.mean is not None:
            ends = {key: rounded(getattr(found, key), 6) for key in ("mean", "low", "high")}
            rows.append({"arm": arm, "x": name.factor, "n": found.n, **ends})
    return rows
