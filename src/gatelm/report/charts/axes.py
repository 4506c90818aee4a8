"""Shared parts of charts: data, colour, scales, ticks, titles, reference lines."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import altair as alt

from gatelm.report.charts.theme import INK, MUTED, Palette

Row = Mapping[str, Any]
Chart = alt.Chart | alt.LayerChart


def data(rows: Sequence[Row]) -> alt.InlineData:
    """Turn rows into a chart's inline data."""
    return alt.InlineData(values=[dict(row) for row in rows])


def unique(rows: Sequence[Row], key: str) -> list[Any]:
    """Return the different values of a column in order of appearance."""
    return list(dict.fromkeys(row[key] for row in rows))


def arm_color(palette: Palette, arms: Sequence[str], *, legend: bool = True) -> alt.Color:
    """Return the colour channel of arms; its legend below has columns that fit a narrow page."""
    longest = max(map(len, arms), default=0)
    below = alt.Legend(
        title=None,
        orient="bottom",
        columns=3 if longest <= 12 else 2 if longest <= 22 else 1,
        symbolType="stroke",
        symbolSize=180,
        symbolStrokeWidth=3,
        symbolOpacity=1,
        labelFontSize=11.5,
    )
    return alt.Color("arm:N").scale(palette.scale(arms)).legend(below if legend else None)


def wrapped(text: str, width: int = 38) -> list[str]:
    """Break a title into lines short enough for a narrow page."""
    return textwrap.wrap(text, width) or [text]


def scale(
    domain: tuple[float, float] | None,
    kind: Literal["linear", "log"] = "linear",
    padding: float | None = None,
) -> alt.Scale:
    """Make a scale that need not contain zero; a given domain is not changed."""
    options: dict[str, Any] = {"type": kind, "nice": domain is None}
    if kind == "linear":
        options["zero"] = False
    if domain is not None:
        options["domain"] = list(domain)
    if padding is not None:
        options["padding"] = padding
    return alt.Scale(**options)


def ticks(domain: tuple[float, float] | None, kind: Literal["linear", "log"]) -> alt.Axis:
    """Make round ticks, such as 1, 2, 5 on a logarithmic scale (more on a short one)."""
    if kind == "linear" or domain is None:
        return alt.Axis(tickCount=5)
    low, high = domain
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        values = [round(step * 10.0**decade, 6) for decade in decades for step in steps]
        kept = [value for value in values if low <= value <= high]
        if len(kept) >= 4:
            return alt.Axis(values=kept, format="~g")
    unit = 10.0 ** math.floor(math.log10(high - low))
    step = next(s * unit for s in (1, 0.5, 0.2, 0.1) if (high - low) / (s * unit) >= 3)
    first, last = math.ceil(low / step), math.floor(high / step)
    return alt.Axis(values=[round(i * step, 6) for i in range(first, last + 1)], format="~g")


def rule(value: float, channel: Literal["x", "y"], *, solid: bool = False) -> alt.Chart:
    """Draw a line at a reference value of one axis."""
    mark = alt.Chart(data([{"reference": value}])).mark_rule(
        color=INK if solid else MUTED, strokeDash=[1, 0] if solid else [4, 3], strokeWidth=1.2
    )
    tooltip = [alt.Tooltip("reference:Q", format=".4~")]
    if channel == "x":
        return mark.encode(x="reference:Q", tooltip=tooltip)
    return mark.encode(y="reference:Q", tooltip=tooltip)


def layered(layers: Sequence[alt.Chart], title: str, height: int) -> alt.LayerChart:
    """Lay charts of the page's width over each other, under one title."""
    chart = alt.layer(*layers)
    assert isinstance(chart, alt.LayerChart)
    return chart.properties(width="container", height=height, title=title)
