"""Curves, dots, intervals and layer profiles: rows of plain data in, an Altair chart out.

Every chart takes the width of its container; `figures.export` gives it a fixed one. Rows are
dicts with the keys named in each docstring; `arm` decides the colour, `label` (arm and axis
values) the place.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import altair as alt

from gatelm.report.theme import INK, MUTED, Palette

Row = Mapping[str, Any]
Chart = alt.Chart | alt.LayerChart


def data(rows: Sequence[Row]) -> alt.InlineData:
    """Rows as a chart's inline data."""
    return alt.InlineData(values=[dict(row) for row in rows])


def unique(rows: Sequence[Row], key: str) -> list[Any]:
    """The values of a column in order of appearance."""
    return list(dict.fromkeys(row[key] for row in rows))


def curves(
    rows: Sequence[Row],
    palette: Palette,
    *,
    title: str,
    x_title: str,
    y_title: str,
    y_domain: tuple[float, float] | None = None,
    y_scale: Literal["linear", "log"] = "linear",
    reference: float | None = None,
    points: Literal["none", "all"] = "none",
    height: int = 280,
) -> Chart:
    """One line a run. Rows: arm, label, seed, x, y, and end ("diverged" where a run broke off).

    A click in the legend brings one arm forward. `reference` draws a horizontal line.
    """
    arms = unique(rows, "arm")
    picked = alt.selection_point(fields=["arm"], bind="legend", name="picked")
    y = alt.Y("y:Q").title(y_title).scale(_scale(y_domain, y_scale))
    base = alt.Chart(data(rows)).encode(
        x=alt.X("x:Q")
        .title(x_title)
        .scale(_scale((0.0, max(row["x"] for row in rows)), padding=5))
        .axis(tickCount=6, format=",d"),
        y=y,
        color=arm_color(palette, arms),
        detail=["label:N", "seed:N"],
        opacity=alt.condition(picked, alt.value(0.85), alt.value(0.12)),
        tooltip=[
            alt.Tooltip("label:N", title="arm"),
            alt.Tooltip("seed:N", title="seed"),
            *(
                [alt.Tooltip("x:Q", title=x_title), alt.Tooltip("y:Q", title=y_title, format=".4~")]
                if points == "all"
                else []
            ),
        ],
    )
    layers: list[alt.Chart] = [base.mark_line(strokeWidth=1.6, clip=True).add_params(picked)]
    if points == "all":
        layers.append(base.mark_circle(size=28, clip=True))
    broken = [row for row in rows if row.get("end")]
    if broken:
        layers.append(_broken(broken, palette, arms, y))
    if reference is not None:
        layers.append(_rule(reference, "y"))
    return _layered(layers, title, height)


def _broken(rows: Sequence[Row], palette: Palette, arms: Sequence[str], y: alt.Y) -> alt.Chart:
    return (
        alt.Chart(data(rows))
        .mark_point(shape="cross", size=110, filled=True, clip=True, angle=45)
        .encode(
            x="x:Q",
            y=y,
            color=arm_color(palette, arms),
            tooltip=[alt.Tooltip("label:N", title="arm"), "seed:N", alt.Tooltip("end:N")],
        )
    )


def arm_color(palette: Palette, arms: Sequence[str], *, legend: bool = True) -> alt.Color:
    """The colour channel of an arm; its legend stands below, in columns that fit a narrow page."""
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


def seeds_and_means(
    seeds: Sequence[Row],
    means: Sequence[Row],
    palette: Palette,
    *,
    title: str,
    x_title: str,
    x_domain: tuple[float, float] | None = None,
    reference: float | None = None,
) -> Chart:
    """Each seed as a dot, the mean with its interval below it.

    Rows of `seeds`: arm, label, seed, value; of `means`: arm, label, mean, low, high, n. With
    `reference` a dashed line marks a value to compare with (uniform attention).
    """
    labels = list(dict.fromkeys([*unique(seeds, "label"), *unique(means, "label")]))
    arms = list(dict.fromkeys([*unique(seeds, "arm"), *unique(means, "arm")]))
    y = alt.Y("label:N").title(None).sort(labels).axis(grid=True, ticks=False, domain=False)
    x_scale = _scale(x_domain)
    axis_title = wrapped(x_title)
    color = arm_color(palette, arms, legend=False)
    layers: list[alt.Chart] = []
    if reference is not None:
        layers.append(_rule(reference, "x"))
    spans = [row for row in means if row.get("low") is not None]
    layers += [
        alt.Chart(data(spans))
        .mark_rule(strokeWidth=2)
        .encode(alt.X("low:Q").scale(x_scale).title(axis_title), y, x2="high:Q", color=color),
        alt.Chart(data(means))
        .mark_tick(thickness=2.5, size=16)
        .encode(alt.X("mean:Q").title(axis_title), y, color=color, tooltip=_mean_tooltip()),
        alt.Chart(data(seeds))
        .mark_circle(size=46, opacity=0.55, stroke="white", strokeWidth=0.5)
        .encode(
            alt.X("value:Q").scale(x_scale).title(axis_title),
            y,
            color=color,
            tooltip=[
                alt.Tooltip("label:N", title="arm"),
                "seed:N",
                alt.Tooltip("value:Q", format=".4~"),
            ],
        ),
    ]
    return _layered(layers, title, 26 * max(len(labels), 1) + 14)


def _mean_tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("label:N", title="arm"),
        *(alt.Tooltip(f"{key}:Q", format=".4~") for key in ("mean", "low", "high")),
        alt.Tooltip("n:Q", title="seeds"),
    ]


def differences(rows: Sequence[Row], palette: Palette, *, title: str, x_title: str) -> Chart:
    """Paired differences with their intervals beside zero.

    Rows: arm, label, difference, low, high (None without an interval), n, outcome.
    """
    labels, arms = unique(rows, "label"), unique(rows, "arm")
    y = alt.Y("label:N").title(None).sort(labels).axis(grid=True, ticks=False, domain=False)
    color = arm_color(palette, arms, legend=False)
    tooltip = [
        alt.Tooltip("label:N", title="arm"),
        *(alt.Tooltip(f"{key}:Q", format="+.4~") for key in ("difference", "low", "high")),
        alt.Tooltip("n:Q", title="paired seeds"),
        alt.Tooltip("outcome:N"),
    ]
    spans = [row for row in rows if row.get("low") is not None]
    layers = [
        _rule(0.0, "x", solid=True),
        alt.Chart(data(spans))
        .mark_rule(strokeWidth=2)
        .encode(
            alt.X("low:Q").title(wrapped(x_title)).scale(_scale(None, padding=10)),
            y,
            x2="high:Q",
            color=color,
            tooltip=tooltip,
        ),
        alt.Chart(data(rows))
        .mark_point(filled=True, size=60, opacity=1)
        .encode(alt.X("difference:Q").title(wrapped(x_title)), y, color=color, tooltip=tooltip),
    ]
    return _layered(layers, title, 26 * len(labels) + 14)


def marked(
    rows: Sequence[Row],
    palette: Palette,
    *,
    title: str,
    x_title: str,
    x_domain: tuple[float, float] | None = (0.0, 1.0),
    reference: float | None = None,
) -> Chart:
    """A value per arm, seed and set of marked positions. Rows: arm, label, seed, mark, value.

    The shape tells the mark; `reference` is the uniform-attention value.
    """
    labels, marks = unique(rows, "label"), unique(rows, "mark")
    shapes = ["circle", "triangle-up", "square", "diamond", "cross"]
    points = (
        alt.Chart(data(rows))
        .mark_point(size=64, strokeWidth=1.6, opacity=0.9, fillOpacity=0.25)
        .encode(
            alt.X("value:Q").title(x_title).scale(_scale(x_domain, padding=7)).axis(tickCount=6),
            alt.Y("label:N").title(None).sort(labels).axis(grid=True, ticks=False, domain=False),
            yOffset=alt.YOffset("mark:N").sort(marks),
            color=arm_color(palette, unique(rows, "arm"), legend=False),
            fill=alt.Fill("arm:N").scale(palette.scale(unique(rows, "arm"))).legend(None),
            shape=alt.Shape("mark:N")
            .scale(domain=marks, range=[shapes[i % len(shapes)] for i in range(len(marks))])
            .legend(title=None, orient="bottom", symbolFillColor="white", symbolStrokeColor=INK),
            tooltip=[
                alt.Tooltip("label:N", title="arm"),
                "seed:N",
                alt.Tooltip("mark:N", title="positions"),
                alt.Tooltip("value:Q", format=".4~"),
            ],
        )
    )
    layers = [points] if reference is None else [_rule(reference, "x"), points]
    return _layered(layers, title, 34 * len(labels) + 14)


def layer_profile(
    rows: Sequence[Row],
    palette: Palette,
    *,
    title: str,
    x_title: str,
    y_title: str,
    y_scale: Literal["linear", "log"] = "linear",
    y_domain: tuple[float, float] | None = None,
    reference: float | None = None,
    height: int = 240,
) -> Chart:
    """A value by depth, one line a run. Rows: arm, label, seed, place (text), value.

    `place` is shown in order of appearance: "embedding", "0", "1", ...
    """
    places = unique(rows, "place")
    base = alt.Chart(data(rows)).encode(
        alt.X("place:O").sort(places).title(x_title).axis(labelAngle=0, grid=False),
        alt.Y("value:Q")
        .title(y_title)
        .scale(_scale(y_domain, y_scale))
        .axis(_ticks(y_domain, y_scale)),
        color=arm_color(palette, unique(rows, "arm")),
        detail=["label:N", "seed:N"],
        tooltip=[
            alt.Tooltip("label:N", title="arm"),
            "seed:N",
            alt.Tooltip("place:O", title=x_title),
            alt.Tooltip("value:Q", format=".4~"),
        ],
    )
    layers = [
        base.mark_line(strokeWidth=1.4, opacity=0.75),
        base.mark_circle(size=34, opacity=0.85),
    ]
    if reference is not None:
        layers.append(_rule(reference, "y"))
    return _layered(layers, title, height)


def ridges(rows: Sequence[Row], *, color: str, title: str, x_title: str) -> Chart:
    """Histograms one above the other, one a layer. Rows: place (text), low, high, share.

    Each histogram is scaled to its own highest bar, so shapes compare and areas do not.
    """
    places = unique(rows, "place")
    peaks = {p: max((r["share"] for r in rows if r["place"] == p), default=0.0) for p in places}
    drawn = []
    for row in rows:
        floor = len(places) - 1 - places.index(row["place"])
        top = floor + 0.88 * row["share"] / (peaks[row["place"]] or 1.0)
        drawn.append({**row, "floor": floor, "top": round(top, 3)})
    names = alt.param(name="places", value=places[::-1])
    axis = alt.Axis(
        values=list(range(len(places))),
        labelExpr="places[datum.value]",
        grid=True,
        ticks=False,
        domain=False,
        labelBaseline="bottom",
    )
    chart = (
        alt.Chart(data(drawn))
        .mark_rect(color=color, opacity=0.8)
        .encode(
            alt.X("low:Q").title(x_title).scale(nice=False).axis(tickCount=5),
            alt.Y("floor:Q").title("layer").axis(axis).scale(domain=[0, len(places)], nice=False),
            x2="high:Q",
            y2="top:Q",
            tooltip=[
                alt.Tooltip("place:N", title="layer"),
                alt.Tooltip("low:Q", title="from", format=".3~"),
                alt.Tooltip("high:Q", title="to", format=".3~"),
                alt.Tooltip("share:Q", title="share of scores", format=".3~"),
            ],
        )
        .add_params(names)
    )
    height = max(34 * len(places) + 10, 70)
    return chart.properties(width="container", height=height, title=title)


def wrapped(text: str, width: int = 38) -> list[str]:
    """A title in lines short enough for a narrow page."""
    return textwrap.wrap(text, width) or [text]


def _scale(
    domain: tuple[float, float] | None,
    kind: Literal["linear", "log"] = "linear",
    padding: float | None = None,
) -> alt.Scale:
    """A scale that need not contain zero; a given domain is kept as it is."""
    options: dict[str, Any] = {"type": kind, "nice": domain is None}
    if kind == "linear":
        options["zero"] = False
    if domain is not None:
        options["domain"] = list(domain)
    if padding is not None:
        options["padding"] = padding
    return alt.Scale(**options)


def _ticks(domain: tuple[float, float] | None, kind: Literal["linear", "log"]) -> alt.Axis:
    """Round ticks, in the manner of 1, 2, 5 on a logarithmic scale (more on a short one)."""
    if kind == "linear" or domain is None:
        return alt.Axis(tickCount=5)
    low, high = domain
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)):
        values = [round(step * 10.0**decade, 6) for decade in decades for step in steps]
        kept = [value for value in values if low <= value <= high]
        if len(kept) >= 4:
            return alt.Axis(values=kept, format="~g")
    unit = 10.0 ** math.floor(math.log10((high - low) / 3))
    step = next(s * unit for s in (10, 5, 2, 1) if (high - low) / (s * unit) >= 2)
    first, last = math.ceil(low / step), math.floor(high / step)
    return alt.Axis(values=[round(i * step, 6) for i in range(first, last + 1)], format="~g")


def _rule(value: float, channel: Literal["x", "y"], *, solid: bool = False) -> alt.Chart:
    mark = alt.Chart(data([{"reference": value}])).mark_rule(
        color=INK if solid else MUTED, strokeDash=[1, 0] if solid else [4, 3], strokeWidth=1.2
    )
    tooltip = [alt.Tooltip("reference:Q", format=".4~")]
    if channel == "x":
        return mark.encode(x="reference:Q", tooltip=tooltip)
    return mark.encode(y="reference:Q", tooltip=tooltip)


def _layered(layers: Sequence[alt.Chart], title: str, height: int) -> alt.LayerChart:
    chart = alt.layer(*layers)
    assert isinstance(chart, alt.LayerChart)
    return chart.properties(width="container", height=height, title=title)
