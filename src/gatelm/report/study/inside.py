"""Sections on the inside: activation norms by layer, gate scores by layer, arm and query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gatelm.report.charts import intervals
from gatelm.report.charts.theme import Palette
from gatelm.report.load import RunRecord, StudyPart, mapping
from gatelm.report.metrics import describe
from gatelm.report.page import Figure, Page
from gatelm.report.sections import (
    GatePlaces,
    Rows,
    add_histograms,
    depth_rows,
    gate_histogram,
    gate_means,
    gates_of,
    profile,
    score_domain,
    who,
)
from gatelm.report.study.attention import MOST_PANELS, one_seed
from gatelm.study.results.numbers import is_number, mean, rounded


def add_activations(page: Page, part: StudyPart, palette: Palette) -> None:
    """Add largest activation and the first token's norm ratio, along the residual stream."""
    figures = []
    for key, name, title, y_title, reference in (
        ("max_abs", "largest-activation", "Largest activation", "max |h|", None),
        ("norm_ratio", "norm-ratio", "First token's norm over the others'", "norm ratio", 1.0),
    ):
        rows = [row for run in part.runs for row in depth_rows(run, key)]
        titles, name = (title, "after layer", f"{y_title} (log)"), f"{part.name}-{name}"
        figures += profile(name, rows, palette, titles, kind="log", reference=reference)
    if figures:
        page.section("Activations by layer", level=3)
        page.text(
            "Along the residual stream, from the embedding to the last layer; one line a seed, "
            "logarithmic scales. A norm ratio of 1 (dashed) means the first token is like the "
            "others."
        )
        page.charts(figures)


def add_gates(page: Page, part: StudyPart, palette: Palette) -> None:
    """Add the gate mean by layer and by kind of query, and histograms per arm and layer."""
    runs = [run for runs in part.groups().values() for run in runs if gates_of(run)]
    if not runs:
        return
    page.section("Gate scores", level=3)
    places, name = GatePlaces(runs), f"{part.name}-gate-mean"
    y_title = describe("gate_mean").axis
    figures = gate_means(name, runs, palette, places, y_title, "One line a seed.")
    marks = [row for run in runs for row in _mark_rows(run)]
    if marks:
        chart = intervals.marked(
            marks,
            palette,
            title="Mean gate score by kind of query",
            x_title="gate score",
            x_domain=score_domain(marks),
        )
        figures.append(Figure(f"{part.name}-gate-by-mark", chart, "One point a seed."))
    page.charts(figures)
    _add_histograms(page, part, runs, palette, places)


def _add_histograms(
    page: Page, part: StudyPart, runs: Sequence[RunRecord], palette: Palette, places: GatePlaces
) -> None:
    """Add histograms of one run of each arm, the first that has any."""
    drawn: dict[str, tuple[RunRecord, Figure]] = {}
    for run in runs:
        if run.label not in drawn and len(drawn) < MOST_PANELS:
            name = f"{part.name}-gate-histogram-{run.label}"
            for figure in gate_histogram(name, run, palette, places):
                drawn[run.label] = run, figure
    if drawn:
        captions, which = one_seed([run for run, _ in drawn.values()])
        pairs = zip(drawn.values(), captions, strict=True)
        figures = [replace(figure, caption=caption) for (_, figure), caption in pairs]
        add_histograms(page, figures, sample=" of the held-out sample", which=f" {which}")


def _mark_rows(run: RunRecord) -> Rows:
    """Return rows of each mark's gate score, a mean over layers and sites."""
    found: dict[str, list[float]] = {}
    for gate in gates_of(run):
        for mark, value in mapping(gate.get("by_mark")).items():
            if is_number(value):
                found.setdefault(mark.replace("_", "-"), []).append(value)
    return [
        {**who(run), "mark": mark, "value": rounded(mean(values))} for mark, values in found.items()
    ]
