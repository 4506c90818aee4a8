"""Values by arm: seeds with their mean, paired differences, values at marked positions."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from gatelm.report.charts.axes import (
    Chart,
    Row,
    arm_color,
    data,
    layered,
    rule,
    scale,
    unique,
    wrapped,
)
from gatelm.report.charts.theme import INK, Palette


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
    """Draw each seed as a dot, and the mean with its interval below it.

    Rows of `seeds`: arm, label, seed, value; of `means`: arm, label, mean, low, high, n. With
    `reference` a dashed line marks a value to compare with (uniform attention).
    """
    labels = list(dict.fromkeys([*unique(seeds, "label"), *unique(means, "label")]))
    arms = list(dict.fromkeys([*unique(seeds, "arm"), *unique(means, "arm")]))
    y = alt.Y("label:N").title(None).sort(labels).axis(grid=True, ticks=False, domain=False)
    x_scale = scale(x_domain)
    axis_title = wrapped(x_title)
    color = arm_color(palette, arms, legend=False)
    layers: list[alt.Chart] = []
    if reference is not None:
        layers.append(rule(reference, "x"))
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
    return layered(layers, title, 26 * max(len(labels), 1) + 14)


def _mean_tooltip() -> list[alt.Tooltip]:
    return [
        alt.Tooltip("label:N", title="arm"),
        *(alt.Tooltip(f"{key}:Q", format=".4~") for key in ("mean", "low", "high")),
        alt.Tooltip("n:Q", title="seeds"),
    ]


def along_axis(
    rows: Sequence[Row], palette: Palette, *, title: str, x_title: str, y_title: str
) -> Chart:
    """Draw means with their intervals along a setting, one line per arm.

    Rows: arm, x, mean, low, high (None without an interval), n. A setting that spans three
    doublings or more is drawn on a logarithmic scale. Arms stand a little beside each other, so
    that no interval covers another.
    """
    places, arms = sorted({float(row["x"]) for row in rows}), unique(rows, "arm")
    wide = places[0] > 0 and places[-1] >= 8 * places[0]
    rows = [{**row, "at": _beside(row, arms, places, wide)} for row in rows]
    ends = (min(row["at"] for row in rows), max(row["at"] for row in rows))
    x = (
        alt.X("at:Q")
        .title(x_title)
        .scale(scale(ends, "log" if wide else "linear", padding=8))
        .axis(values=places, format="~g", labelOverlap=True)
    )
    y = alt.Y("mean:Q").title(wrapped(y_title)).scale(scale(None))
    color = arm_color(palette, arms)
    tooltip = [
        alt.Tooltip("arm:N"),
        alt.Tooltip("x:Q", title=x_title, format="~g"),
        *(alt.Tooltip(f"{key}:Q", format=".4~") for key in ("mean", "low", "high")),
        alt.Tooltip("n:Q", title="seeds"),
    ]
    base = alt.Chart(data(rows)).encode(x, y, color=color, tooltip=tooltip)
    spans = [row for row in rows if row.get("low") is not None]
    layers = [
        base.mark_line(strokeWidth=1.6),
        base.mark_circle(size=40, opacity=0.9),
        alt.Chart(data(spans))
        .mark_rule(strokeWidth=1.4, opacity=0.6)
        .encode(x, alt.Y("low:Q").title(wrapped(y_title)), y2="high:Q", color=color),
    ]
    return layered(layers, title, 260)


def _beside(row: Row, arms: Sequence[str], places: Sequence[float], wide: bool) -> float:
    """Place an arm's mean at its setting, moved by up to 2 % of the axis."""
    shift = 0.04 * ((arms.index(row["arm"]) + 0.5) / len(arms) - 0.5)
    x = float(row["x"])
    if wide:
        return x * (places[-1] / places[0]) ** shift
    return x + (places[-1] - places[0]) * shift


def differences(rows: Sequence[Row], palette: Palette, *, title: str, x_title: str) -> Chart:
    """Draw paired differences with their intervals beside zero.

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
        rule(0.0, "x", solid=True),
        alt.Chart(data(spans))
        .mark_rule(strokeWidth=2)
        .encode(
            alt.X("low:Q").title(wrapped(x_title)).scale(scale(None, padding=10)),
            y,
            x2="high:Q",
            color=color,
            tooltip=tooltip,
        ),
        alt.Chart(data(rows))
        .mark_point(filled=True, size=60, opacity=1)
        .encode(alt.X("difference:Q").title(wrapped(x_title)), y, color=color, tooltip=tooltip),
    ]
    return layered(layers, title, 26 * len(labels) + 14)


def marked(
    rows: Sequence[Row],
    palette: Palette,
    *,
    title: str,
    x_title: str,
    x_domain: tuple[float, float] | None = (0.0, 1.0),
    reference: float | None = None,
) -> Chart:
    """Draw a value per arm, seed and set of marks. Rows: arm, label, seed, mark, value.

    The shape tells the mark; `reference` is the uniform-attention value.
    """
    labels, marks = unique(rows, "label"), unique(rows, "mark")
    shapes = ["circle", "triangle-up", "square", "diamond", "cross"]
    points = (
        alt.Chart(data(rows))
        .mark_point(size=64, strokeWidth=1.6, opacity=0.9, fillOpacity=0.25)
        .encode(
            alt.X("value:Q").title(x_title).scale(scale(x_domain, padding=7)).axis(tickCount=6),
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
    layers = [points] if reference is None else [rule(reference, "x"), points]
    return layered(layers, title, 34 * len(labels) + 14)
