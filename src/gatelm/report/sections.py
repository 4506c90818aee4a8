"""Sections shared by reports of studies and of models: profiles, heads, maps, gates.

A study's run and a model of `gatelm analyze` are both `Measured`: they are drawn in one way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from gatelm.report.charts import heatmaps, profiles
from gatelm.report.charts.theme import Palette
from gatelm.report.load import mapping
from gatelm.report.page import Control, Figure, Page
from gatelm.study.results.numbers import is_number, rounded

Rows = list[dict[str, Any]]


class Measured(Protocol):
    """A run or a model with its analysis."""

    @property
    def arm(self) -> str:
        """Name of the arm, which decides the colour."""
        ...

    @property
    def label(self) -> str:
        """Name of the run or model."""
        ...

    @property
    def seed(self) -> int | None:
        """Seed of the run; None for a model."""
        ...

    @property
    def analysis(self) -> Mapping[str, Any]:
        """Tree of the analysis."""
        ...


def who(measured: Measured) -> dict[str, Any]:
    """Return the first columns of every row of a chart."""
    return {"arm": measured.arm, "label": measured.label, "seed": measured.seed}


def place_rows(
    measured: Measured, places: Iterable[object], values: Iterable[object], digits: int = 4
) -> Rows:
    """Make the rows of a layer profile, leaving out values that are no numbers."""
    return [
        {**who(measured), "place": str(place), "value": rounded(value, digits)}
        for place, value in zip(places, values, strict=False)
        if is_number(value)
    ]


def depth_rows(measured: Measured, key: str) -> Rows:
    """Make rows along the residual stream, of which the first value is the embedding's."""
    values = mapping(measured.analysis.get("residual")).get(key)
    values = values if isinstance(values, list) else []
    return place_rows(measured, ["embedding", *range(len(values) - 1)], values)


def head_cells(label: str, layers: Iterable[object], by_head: Iterable[Any]) -> Rows:
    """Make the cells of a heatmap by layer and head, leaving out values that are no numbers."""
    return [
        {"label": label, "layer": layer, "head": head, "value": rounded(value)}
        for layer, heads in zip(layers, by_head, strict=False)
        for head, value in enumerate(heads or ())
        if is_number(value)
    ]


def share_top(shares: Iterable[float], uniform: float | None = None) -> float:
    """Return the end of an axis of shares: 1, or slightly above the largest if all are small."""
    most = max([*shares, uniform or 0.0])
    return 1.0 if most > 0.3 else rounded(1.15 * most, 2) or 1.0


def share_domain(rows: Rows, uniform: float | None = None) -> tuple[float, float]:
    """Return the domain of the shares in `rows`."""
    return 0.0, share_top((row["value"] for row in rows), uniform)


def score_domain(rows: Rows) -> tuple[float, float]:
    """Return the domain of the gate scores in `rows`: up to 1, or to a larger score."""
    return 0.0, max([1.0, *(row["value"] for row in rows)])


def profile(
    name: str,
    rows: Rows,
    palette: Palette,
    titles: tuple[str, str, str],
    *,
    kind: Literal["linear", "log"] = "linear",
    domain: tuple[float, float] | None = None,
    reference: float | None = None,
    caption: str = "",
) -> list[Figure]:
    """Draw a value by layer, or by any other place; no figure without rows.

    Args:
        titles: of the chart, of the places and of the values.
        kind: a logarithmic axis shows positive values only, and chooses its own domain.
        reference: where a dashed line stands.
    """
    if kind == "log":
        rows = [row for row in rows if row["value"] > 0]
        domain = _log_domain(rows, reference) if rows else None
    if not rows:
        return []
    title, x_title, y_title = titles
    chart = profiles.layer_profile(
        rows,
        palette,
        title=title,
        x_title=x_title,
        y_title=y_title,
        y_scale=kind,
        y_domain=domain,
        reference=reference,
    )
    return [Figure(name, chart, caption)]


def _log_domain(rows: Rows, include: float | None) -> tuple[float, float]:
    """Return the range of a logarithmic axis, with a small margin."""
    values = [row["value"] for row in rows] + ([] if include is None else [include])
    low, high = min(values), max(values)
    pad = max((high / low) ** 0.06, 1.02)
    return low / pad, high * pad


class Maps(NamedTuple):
    """The `attention_maps` of one analysis, with the name, title and caption of their figure."""

    name: str
    title: str
    drawn: Mapping[str, Any]
    caption: str = ""


def add_maps(page: Page, panels: Sequence[Maps], scale: str = "", which: str = "") -> None:
    """Add the attention maps of one sample, with controls for layer and head.

    Args:
        scale: what else is said of the colour scale.
        which: a sentence that says which runs are shown.
    """
    figures, layers, heads = [], set(), set()
    for panel in panels:
        maps = panel.drawn["maps"][: heatmaps.MAX_MAPS]
        layers |= {one["layer"] for one in maps}
        heads |= {one["head"] for one in maps}
        chart = heatmaps.attention_map(panel.drawn["tokens"], maps, title=panel.title)
        figures.append(Figure(panel.name, chart, panel.caption, width=320))
    page.text(
        f"Rows are queries, columns keys, on a fixed scale from 0 to 1{scale}. Without the first "
        "column each map takes a scale of its own, up to its largest remaining value: compare "
        f"patterns then, not colours.{which}"
    )
    controls = [
        Control("layer", "Layer", [(layer, str(layer)) for layer in sorted(layers)]),
        Control("head", "Head", [(head, str(head)) for head in sorted(heads)]),
        Control("first", "First column", [("show", "shown"), ("hide", "hidden, colours rescaled")]),
    ]
    page.charts(figures, controls, min_width=310)


def gates_of(measured: Measured) -> list[Mapping[str, Any]]:
    """Return the gates that an analysis has read."""
    gates = measured.analysis.get("gates")
    return [mapping(gate) for gate in gates] if isinstance(gates, list) else []


class GatePlaces:
    """Names of the places of gates: the layer, and the site if models have several sites."""

    def __init__(self, models: Iterable[Measured]) -> None:
        self.several = len({gate.get("site") for m in models for gate in gates_of(m)}) > 1
        self.title = "layer and site" if self.several else "layer"

    def of(self, gate: Mapping[str, Any]) -> str:
        """Return the place of one gate."""
        layer = str(gate.get("layer"))
        return f"{layer} {gate.get('site')}" if self.several else layer


def gate_means(
    name: str,
    models: Sequence[Measured],
    palette: Palette,
    places: GatePlaces,
    y_title: str,
    caption: str = "",
) -> list[Figure]:
    """Draw the mean score of each gate."""
    rows = []
    for m in models:
        gates = gates_of(m)
        rows += place_rows(m, map(places.of, gates), (gate.get("mean") for gate in gates))
    titles = ("Mean gate score by layer", places.title, y_title)
    return profile(name, rows, palette, titles, domain=score_domain(rows), caption=caption)


def gate_histogram(
    name: str, measured: Measured, palette: Palette, places: GatePlaces
) -> list[Figure]:
    """Draw the scores of each gate as histograms; no figure if none was recorded."""
    rows = [row for gate in gates_of(measured) for row in _bins(gate, places.of(gate))]
    if not rows:
        return []
    color = palette.of(measured.arm)
    chart = profiles.ridges(rows, color=color, title=measured.label, x_title="gate score")
    return [Figure(name, chart)]


def add_histograms(page: Page, figures: Sequence[Figure], sample: str, which: str = "") -> None:
    """Add figures of `gate_histogram`, with a text on how to read them."""
    if figures:
        page.text(
            f"How often each gate score occurs, over all tokens, heads and channels{sample}. Each "
            "layer's histogram is scaled to its own highest bar; point at a bar for its share."
            f"{which}"
        )
        page.charts(figures, min_width=310)


def _bins(gate: Mapping[str, Any], place: str) -> Rows:
    histogram = mapping(gate.get("histogram"))
    edges, counts = histogram.get("edges") or [], histogram.get("counts") or []
    total = sum(count for count in counts if is_number(count))
    if not total or len(edges) != len(counts) + 1:
        return []
    return [
        {
            "place": place,
            "low": rounded(low),
            "high": rounded(high),
            "share": rounded(count / total),
        }
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
