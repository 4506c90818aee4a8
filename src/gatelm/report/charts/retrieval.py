"""Charts of retrieval: scores by the length of the text and the depth of the needle."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from gatelm.report.charts.axes import Chart, Row, data, unique
from gatelm.report.charts.theme import SEQUENTIAL


def score_by_depth(rows: Sequence[Row], *, title: str) -> Chart:
    """Draw one task, depth down, length across. Rows: length (text), depth (%), value (0 to 1).

    The colour scale is fixed from 0 to 1, so that models can be compared by eye.
    """
    x = alt.X("length:O").sort(unique(rows, "length")).title("tokens of text and answer")
    y = alt.Y("depth:O").sort(sorted(unique(rows, "depth"))).title("depth, percent")
    base = alt.Chart(data(rows)).encode(
        x.axis(labelAngle=0, ticks=False, domain=False), y.axis(ticks=False, domain=False)
    )
    scale = alt.Scale(scheme=SEQUENTIAL, domain=[0, 1], clamp=True)
    legend = alt.Legend(title=None, orient="bottom", gradientThickness=9, values=[0, 0.5, 1])
    cells = base.mark_rect(stroke="white", strokeWidth=1).encode(
        color=alt.Color("value:Q").scale(scale).legend(legend),
        tooltip=[
            alt.Tooltip("length:N"),
            alt.Tooltip("depth:Q", title="depth, percent"),
            alt.Tooltip("value:Q", title="score", format=".2f"),
        ],
    )
    text = base.mark_text(fontSize=10).encode(
        text=alt.Text("value:Q", format=".2f"),
        color=alt.condition("datum.value > 0.6", alt.value("#111111"), alt.value("#ffffff")),
    )
    height = 26 * len(unique(rows, "depth"))
    chart = alt.layer(cells, text)
    assert isinstance(chart, alt.LayerChart)
    return chart.properties(width="container", height=max(height, 40), title=title)
