"""Curves of recorded values side by side, spikes marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import altair as alt
import numpy as np

from gatelm.io.files import write_text
from gatelm.report.charts import figures
from gatelm.report.charts.axes import Chart, arm_color, data, layered, scale
from gatelm.report.charts.theme import Palette
from gatelm.report.page import Figure
from gatelm.study.results.curves import Curve
from gatelm.study.results.spikes import Spikes

MOST_POINTS = 400
"""Largest number of points of a curve: the peak and median of half as many stretches."""


@dataclass(frozen=True)
class Drawn:
    """A curve and the spikes that one rule found in it."""

    curve: Curve
    spikes: Spikes


def curves_chart(drawn: Sequence[Drawn], *, from_step: int = 0) -> Chart:
    """Draw one line per curve from `from_step` on, with a triangle at each event's peak."""
    palette = Palette.of_arms(d.curve.name for d in drawn)
    names = [d.curve.name for d in drawn]
    rows = [row for d in drawn for row in _rows(d.curve, from_step)]
    marks = [
        {"arm": d.curve.name, "x": e.peak_step, "y": e.peak}
        for d in drawn
        for e in d.spikes.events
        if e.peak is not None
    ]
    color = arm_color(palette, names)
    x = alt.X("x:Q").title("step").scale(scale(None)).axis(tickCount=6, format=",d")
    y = alt.Y("y:Q").title(drawn[0].curve.column if drawn else "value").scale(scale(None))
    layers = [
        alt.Chart(data(rows)).mark_line(strokeWidth=1.2, opacity=0.85).encode(x, y, color=color),
        alt.Chart(data(marks))
        .mark_point(shape="triangle-down", size=40, filled=True)
        .encode(x, y, color=color),
    ]
    rule = drawn[0].spikes.rule if drawn else ""
    return layered(layers, f"Curves, and spikes by the rule {rule}", 260)


def write_chart(drawn: Sequence[Drawn], path: Path, *, from_step: int = 0) -> None:
    """Write the chart as an SVG file.

    Raises:
        OSError: the file cannot be written.
    """
    figure = Figure(path.stem, curves_chart(drawn, from_step=from_step))
    write_text(path, figures.svg(figure))


def _rows(curve: Curve, from_step: int) -> list[dict[str, object]]:
    """Reduce a curve to few points that keep every peak: each stretch's median and maximum."""
    kept = (curve.steps >= from_step) & np.isfinite(curve.values)
    steps, values = curve.steps[kept], curve.values[kept]
    if len(steps) <= MOST_POINTS:
        chosen = np.arange(len(steps))
    else:
        chosen = np.unique([
            index
            for stretch in np.array_split(np.arange(len(steps)), MOST_POINTS // 2)
            for index in (
                stretch[values[stretch].argmax()],
                stretch[values[stretch].argsort()[len(stretch) // 2]],
            )
        ])  # fmt: skip
    return [{"arm": curve.name, "x": int(steps[i]), "y": float(f"{values[i]:.5g}")} for i in chosen]
