"""Curves, layer profiles and histograms: rows of plain data in, an Altair chart out.

Every chart takes the width of its container; `figures.svg` gives it a fixed one. Rows are
dicts with the keys named in each docstring; `arm` decides the colour, `label` (arm and axis
values) the place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import altair as alt

from gatelm.report.charts.axes import (
    Chart,
    Row,
    arm_color,
    data,
    layered,
    rule,
    scale,
    ticks,
    unique,
)
from gatelm.report.charts.theme import Palette


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
    """Draw one line per run. Rows: arm, label, seed, x, y, and end ("diverged" if it diverged).

    A click in the legend brings one arm forward. `reference` draws a horizontal line.
    """
    arms = unique(rows, "arm")
    picked = alt.selection_point(fields=["arm"], bind="legend", name="picked")
    y = alt.Y("y:Q").title(y_title).scale(scale(y_domain, y_scale))
    base = alt.Chart(data(rows)).encode(
        x=alt.X("x:Q")
        .title(x_title)
        .scale(scale((0.0, max(row["x"] for row in rows)), padding=5))
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
        layers.append(rule(reference, "y"))
    return layered(layers, title, height)


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
    """Draw a value by depth, one line per run. Rows: arm, label, seed, place (text), value.

    `place` is shown in order of appearance: "embedding", "0", "1", ... Without seeds (None) the
    lines are models.
    """
    places = unique(rows, "place")
    seeds = any(row.get("seed") is not None for row in rows)
    base = alt.Chart(data(rows)).encode(
        alt.X("place:O").sort(places).title(x_title).axis(labelAngle=0, grid=False),
        alt.Y("value:Q")
        .title(y_title)
        .scale(scale(y_domain, y_scale))
        .axis(ticks(y_domain, y_scale)),
        color=arm_color(palette, unique(rows, "arm")),
        detail=["label:N", "seed:N"],
        tooltip=[
            alt.Tooltip("label:N", title="arm" if seeds else "model"),
            *(["seed:N"] if seeds else []),
            alt.Tooltip("place:O", title=x_title),
            alt.Tooltip("value:Q", format=".4~"),
        ],
    )
    layers = [
        base.mark_line(strokeWidth=1.4, opacity=0.75),
        base.mark_circle(size=34, opacity=0.85),
    ]
    if reference is not None:
        layers.append(rule(reference, "y"))
    return layered(layers, title, height)


def ridges(rows: Sequence[Row], *, color: str, title: str, x_title: str) -> Chart:
    """Draw one histogram per layer, one above the other. Rows: place (text), low, high, share.

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
