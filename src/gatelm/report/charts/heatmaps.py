"""Heatmaps of attention: first-token share by layer and head, and the maps of one sample.

All use one colour scale from 0 to 1, so two arms can be compared by eye.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from gatelm.report.charts.axes import Chart, Row, data, unique
from gatelm.report.charts.theme import SEQUENTIAL

MAX_TOKENS = 48
MAX_MAPS = 36


def _probability(title: str | None) -> alt.Color:
    scale = alt.Scale(scheme=SEQUENTIAL, domain=[0, 1], clamp=True)
    legend = alt.Legend(
        title=title,
        orient="bottom",
        gradientLength=alt.ExprRef("min(width, 220)"),
        gradientThickness=9,
        values=[0, 0.25, 0.5, 0.75, 1],
        format=".2~f",
    )
    return alt.Color("value:Q").scale(scale).legend(legend)


def _grid(
    rows: Sequence[Row], columns: tuple[str, str], lines: tuple[str, str], whose: str
) -> Chart:
    """Draw cells with their values inside; `columns` and `lines` are (field, axis title)."""
    x = (
        alt.X(f"{columns[0]}:O")
        .sort(unique(rows, columns[0]))
        .title(columns[1])
        .axis(labelAngle=0, ticks=False, domain=False)
    )
    y = (
        alt.Y(f"{lines[0]}:O")
        .sort(unique(rows, lines[0]))
        .title(lines[1] or None)
        .axis(ticks=False, domain=False)
    )
    base = alt.Chart(data(rows)).encode(x, y)
    tooltip = [
        alt.Tooltip("label:N", title=whose),
        *(alt.Tooltip(f"{key}:N") for key in ("layer", "head") if key in rows[0]),
        alt.Tooltip("value:Q", title="share", format=".4~"),
    ]
    cells = base.mark_rect(stroke="white", strokeWidth=1).encode(
        color=_probability(None), tooltip=tooltip
    )
    many = len(unique(rows, columns[0])) > 8
    text = base.mark_text(fontSize=9 if many else 11).encode(
        text=alt.Text("value:Q", format=".1f" if many else ".2f"),
        color=alt.condition("datum.value > 0.6", alt.value("#111111"), alt.value("#ffffff")),
    )
    chart = alt.layer(cells, text) if len(unique(rows, columns[0])) <= 16 else alt.layer(cells)
    assert isinstance(chart, alt.LayerChart)
    return chart


def share_by_head(rows: Sequence[Row], *, title: str, whose: str = "arm") -> Chart:
    """Draw one arm or model, layers down, heads across. Rows: label, layer, head, value."""
    chart = _grid(rows, ("head", "head"), ("layer", "layer"), whose)
    height = 26 * len(unique(rows, "layer"))
    return chart.properties(width="container", height=max(height, 40), title=title)


def share_by_arm(rows: Sequence[Row], *, title: str) -> Chart:
    """Draw small models, arms down, layer and head across. Rows: label, column, value (0 to 1)."""
    chart = _grid(rows, ("column", "layer and head"), ("label", ""), "arm")
    height = 30 * len(unique(rows, "label"))
    return chart.properties(width="container", height=max(height, 40), title=title)


def attention_map(
    tokens: Sequence[str], maps: Sequence[Mapping[str, Any]], *, title: str
) -> alt.Chart:
    """Draw the attention of one sample; rows are queries, columns keys.

    Parameters of the chart (set by the page's controls, or `chart.params` elsewhere): `layer`,
    `head` and `first`, which is "show" (fixed scale from 0 to 1) or "hide" (no first column, and
    the colour scale ends at the largest value that is left in the map).

    Args:
        tokens: display strings, at most `MAX_TOKENS` are drawn.
        maps: dicts of layer, head and weights (T, T), each row a distribution over keys.
    """
    names = [str(token) for token in tokens[:MAX_TOKENS]]
    params = [
        alt.param(name="layer", value=maps[0]["layer"]),
        alt.param(name="head", value=maps[0]["head"]),
        alt.param(name="first", value="show"),
        alt.param(name="tokens", value=names),
    ]
    places = list(range(len(names)))
    axis = alt.Axis(
        labelExpr="tokens[datum.value]",
        ticks=False,
        domain=False,
        labelFontSize=9,
        labelLimit=64,
        labelOverlap=True,
        labelPadding=3,
    )
    return (
        alt.Chart(data(_map_rows(maps[:MAX_MAPS], len(names))))
        .transform_filter("datum.layer == layer && datum.head == head")
        .transform_calculate(key="sequence(length(datum.w))")
        .transform_flatten(["key", "w"])
        .transform_filter("first == 'show' || datum.key > 0")
        .transform_calculate(
            value="datum.w / 1000",
            query_token="tokens[datum.query]",
            key_token="tokens[datum.key]",
        )
        .mark_rect()
        .encode(
            alt.X("key:O").title("key").scale(domain=places).axis(axis),
            alt.Y("query:O").title("query").scale(domain=places).axis(axis),
            color=_rescalable(),
            tooltip=[
                alt.Tooltip("query_token:N", title="query"),
                alt.Tooltip("key_token:N", title="key"),
                alt.Tooltip("query:Q", title="query position"),
                alt.Tooltip("key:Q", title="key position"),
                alt.Tooltip("value:Q", title="attention", format=".3~"),
            ],
        )
        .add_params(*params)
        .properties(width="container", height=250, title=title)
    )


def _map_rows(maps: Sequence[Mapping[str, Any]], length: int) -> list[dict[str, Any]]:
    """Return a row per query, with its weights in thousandths up to the last key it sees."""
    return [
        {
            "layer": entry["layer"],
            "head": entry["head"],
            "query": query,
            "w": [round(1000 * float(weight or 0)) for weight in weights[: query + 1]],
        }
        for entry in maps
        for query, weights in enumerate(entry["weights"][:length])
    ]


def _rescalable() -> alt.Color:
    """Make a scale from 0 to 1, or to the largest other value if the first column is hidden."""
    scale = alt.Scale(
        scheme=SEQUENTIAL,
        domainMin=0,
        domainMax=alt.ExprRef("first == 'show' ? 1 : null"),
        zero=True,
        nice=False,
        clamp=True,
    )
    legend = alt.Legend(
        title=None,
        orient="bottom",
        gradientLength=alt.ExprRef("min(width, 220)"),
        gradientThickness=9,
        tickCount=4,
    )
    return alt.Color("value:Q").scale(scale).legend(legend)
