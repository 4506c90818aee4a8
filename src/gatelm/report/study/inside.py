"""Inside the network: activation norms by layer, gate scores by layer, arm and kind of query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gatelm.report.charts import intervals, profiles
from gatelm.report.charts.theme import Palette
from gatelm.report.load import RunRecord, StudyPart, mapping
from gatelm.report.metrics import describe
from gatelm.report.page import Figure, Page
from gatelm.report.study.attention import MOST_PANELS, one_seed
from gatelm.study.results.numbers import is_number, rounded


def add_activations(page: Page, part: StudyPart, palette: Palette) -> None:
    """Largest activation and the first token's norm ratio, along the residual stream."""
    figures = []
    for key, name, title, y_title in (
        ("max_abs", "largest-activation", "Largest activation", "max |h|"),
        ("norm_ratio", "norm-ratio", "First token's norm over the others'", "norm ratio"),
    ):
        rows = [row for run in part.runs for row in _depth_rows(run, key)]
        if not rows:
            continue
        figures.append(
            Figure(
                f"{part.name}-{name}",
                profiles.layer_profile(
                    rows,
                    palette,
                    title=title,
                    x_title="after layer",
                    y_title=f"{y_title} (log)",
                    y_scale="log",
                    y_domain=_log_domain(rows, 1.0 if key == "norm_ratio" else None),
                    reference=1.0 if key == "norm_ratio" else None,
                ),
            )
        )
    if figures:
        page.section("Activations by layer", level=3)
        page.text(
            "Along the residual stream, from the embedding to the last layer; one line a seed, "
            "logarithmic scales. A norm ratio of 1 (dashed) means the first token is like the "
            "others."
        )
        page.charts(figures)


def _log_domain(rows: Sequence[Mapping[str, Any]], include: float | None) -> tuple[float, float]:
    values = [row["value"] for row in rows] + ([] if include is None else [include])
    low, high = min(values), max(values)
    pad = max((high / low) ** 0.06, 1.02)
    return low / pad, high * pad


def _depth_rows(run: RunRecord, key: str) -> list[dict[str, Any]]:
    values = mapping(run.analysis.get("residual")).get(key)
    if not isinstance(values, list):
        return []
    return [
        {
            "arm": run.arm,
            "label": run.label,
            "seed": run.seed,
            "place": "embedding" if i == 0 else str(i - 1),
            "value": rounded(value),
        }
        for i, value in enumerate(values)
        if is_number(value) and value > 0
    ]


def add_gates(page: Page, part: StudyPart, palette: Palette) -> None:
    """Gate mean by layer, gate by kind of query, and histograms per arm and layer."""
    runs = [run for runs in part.groups().values() for run in runs if _gates(run)]
    if not runs:
        return
    page.section("Gate scores", level=3)
    metric = describe("gate_mean")
    several = len({gate.get("site") for run in runs for gate in _gates(run)}) > 1
    means = [
        {**_who(run), "place": _place(gate, several), "value": rounded(gate.get("mean"))}
        for run in runs
        for gate in _gates(run)
        if is_number(gate.get("mean"))
    ]
    figures = []
    if means:
        chart = profiles.layer_profile(
            means,
            palette,
            title="Mean gate score by layer",
            x_title="layer and site" if several else "layer",
            y_title=metric.axis,
            y_domain=(0.0, max(1.0, *(row["value"] or 0.0 for row in means))),
        )
        figures.append(Figure(f"{part.name}-gate-mean", chart, "One line a seed."))
    marks = [row for run in runs for row in _mark_rows(run)]
    if marks:
        chart = intervals.marked(
            marks,
            palette,
            title="Mean gate score by kind of query",
            x_title="gate score",
            x_domain=(0.0, max(1.0, *(row["value"] or 0.0 for row in marks))),
        )
        figures.append(Figure(f"{part.name}-gate-by-mark", chart, "One point a seed."))
    page.charts(figures)
    _add_histograms(page, part, runs, palette, several)


def _add_histograms(
    page: Page, part: StudyPart, runs: Sequence[RunRecord], palette: Palette, several: bool
) -> None:
    figures, drawn, seeds = [], set(), []
    for run in runs:
        rows = [row for gate in _gates(run) for row in bins(gate, several)]
        if not rows or run.label in drawn or len(drawn) == MOST_PANELS:
            continue
        drawn.add(run.label)
        chart = profiles.ridges(
            rows, color=palette.of(run.arm), title=run.label, x_title="gate score"
        )
        seeds.append(run.seed)
        figures.append(Figure(f"{part.name}-gate-histogram-{run.label}", chart))
    if figures:
        figures, which = one_seed(figures, seeds)
        page.text(
            "How often each gate score occurs, over all tokens, heads and channels of the held-out "
            "sample. Each layer's histogram is scaled to its own highest bar; point at a bar for "
            f"its share. {which}"
        )
        page.charts(figures, min_width=310)


def _gates(run: RunRecord) -> list[Mapping[str, Any]]:
    gates = run.analysis.get("gates")
    return [mapping(gate) for gate in gates] if isinstance(gates, list) else []


def _who(run: RunRecord) -> dict[str, Any]:
    return {"arm": run.arm, "label": run.label, "seed": run.seed}


def _place(gate: Mapping[str, Any], several: bool) -> str:
    layer = str(gate.get("layer"))
    return f"{layer} {gate.get('site')}" if several else layer


def _mark_rows(run: RunRecord) -> list[dict[str, Any]]:
    """The mean over layers and sites of each mark's gate score."""
    found: dict[str, list[float]] = {}
    for gate in _gates(run):
        for mark, value in mapping(gate.get("by_mark")).items():
            if is_number(value):
                found.setdefault(mark.replace("_", "-"), []).append(float(value))
    return [
        {**_who(run), "mark": mark, "value": rounded(sum(values) / len(values))}
        for mark, values in found.items()
    ]


def bins(gate: Mapping[str, Any], several: bool) -> list[dict[str, Any]]:
    """A gate's histogram as rows for `profiles.ridges`."""
    histogram = mapping(gate.get("histogram"))
    edges, counts = histogram.get("edges") or [], histogram.get("counts") or []
    total = sum(count for count in counts if is_number(count))
    if not total or len(edges) != len(counts) + 1:
        return []
    return [
        {
            "place": _place(gate, several),
            "low": rounded(low),
            "high": rounded(high),
            "share": rounded(count / total),
        }
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
