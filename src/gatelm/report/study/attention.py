"""Sections on attention: first-token share by layer and head, at marked positions, maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gatelm.report.charts import heatmaps, intervals
from gatelm.report.charts.axes import unique
from gatelm.report.charts.theme import Palette
from gatelm.report.load import RunRecord, StudyPart, mapping
from gatelm.report.page import Figure, Page
from gatelm.report.sections import Maps, Rows, add_maps, head_cells, share_domain, who
from gatelm.study.results.numbers import is_number, mean, rounded, short

FEW_CELLS = 8
MOST_PANELS = 12


def add_attention(page: Page, part: StudyPart, palette: Palette) -> None:
    """Add first-token share beside its uniform value, then the attention maps of one sample."""
    groups = {n: [r for r in runs if r.analysis] for n, runs in part.groups().items()}
    groups = {name: runs for name, runs in groups.items() if runs}
    shares = _shares(groups)
    maps = {name: run for name, runs in groups.items() if (run := _with_maps(runs))}
    if shares:
        page.section("Attention on the first token", level=3)
        small = _add_shares(page, part, groups, shares)
        page.charts([*small, *_mark_figures(part, groups, palette)])
    if maps:
        page.section("Attention maps of one sample", level=3)
        shown = list(maps.items())[:MOST_PANELS]
        captions, which = one_seed([run for _, run in shown])
        panels = [
            Maps(f"{part.name}-attention-map-{arm}", arm, run.analysis["attention_maps"], caption)
            for (arm, run), caption in zip(shown, captions, strict=True)
        ]
        add_maps(page, panels, which=f" {which}")
        _note_left_out(page, maps)


def uniform_share(runs: Iterable[RunRecord]) -> float | None:
    """Return the share under uniform attention, as the analysis recorded it."""
    values = (run.analysis.get("uniform_share") for run in runs)
    return next((float(v) for v in values if is_number(v)), None)


def average(matrices: Sequence[Any]) -> list[list[float | None]]:
    """Average (layers, heads) matrices cell by cell, over the cells that hold numbers.

    Matrices of another shape than the first's are left out; a cell without numbers is None.
    """
    good = [m for m in matrices if isinstance(m, list) and m and all(map(_is_row, m))]
    same = [m for m in good if [len(row) for row in m] == [len(row) for row in good[0]]]
    return [[mean(cells) for cells in zip(*rows, strict=True)] for rows in zip(*same, strict=True)]


def _is_row(row: Any) -> bool:
    return isinstance(row, list) and bool(row)


def mean_share(share: Sequence[Sequence[float | None]]) -> float | None:
    """Average over all layers and heads that have a number."""
    return mean(value for row in share for value in row)


def _shares(groups: Mapping[str, Sequence[RunRecord]]) -> dict[str, list[list[float | None]]]:
    found = {
        name: average([run.analysis.get("first_token_share") for run in runs])
        for name, runs in groups.items()
    }
    return {name: share for name, share in found.items() if mean_share(share) is not None}


def _add_shares(
    page: Page, part: StudyPart, groups: Mapping[str, Sequence[RunRecord]], shares: dict[str, Any]
) -> list[Figure]:
    """Write text and heatmaps: one per arm for models of many heads, else a single figure."""
    runs = [run for runs in groups.values() for run in runs]
    uniform = uniform_share(runs)
    length = next((run.analysis.get("seq_len") for run in runs), None)
    text = (
        "Mean attention that queries give to the first token, averaged over seeds. The colour "
        "scale is fixed from 0 to 1."
    )
    if uniform is not None:
        text += f" Uniform attention would give {short(uniform)}"
        text += f" at {length} tokens." if is_number(length) else "."
    page.text(text)
    if max(sum(len(row) for row in share) for share in shares.values()) <= FEW_CELLS:
        rows = [row for n, share in shares.items() for row in _cells(n, share, groups[n][0])]
        if uniform is not None:
            rows += [
                {"label": "uniform attention", "column": column, "value": rounded(uniform)}
                for column in unique(rows, "column")
            ]
        chart = heatmaps.share_by_arm(rows, title="Share of attention on the first token")
        return [Figure(f"{part.name}-first-token-share", chart, "Mean over seeds.")]
    figures = []
    for name, share in list(shares.items())[:MOST_PANELS]:
        beside = f"; uniform {short(uniform)}" if uniform is not None else ""
        figures.append(
            Figure(
                f"{part.name}-first-token-share-{name}",
                heatmaps.share_by_head(_cells(name, share, groups[name][0]), title=name),
                f"Mean {short(mean_share(share))}{beside}.",
            )
        )
    page.charts(figures, min_width=300)
    _note_left_out(page, shares)
    return []


def _cells(name: str, share: Sequence[Sequence[float | None]], run: RunRecord) -> Rows:
    """Make the cells of a heatmap; a model may have attention in some of its layers only."""
    layers = run.analysis.get("attention_layers")
    if not isinstance(layers, list) or len(layers) != len(share):
        layers = range(len(share))
    cells = head_cells(name, layers, share)
    for cell in cells:
        cell["column"] = f"layer {cell['layer']}, head {cell['head']}"
        cell["value"] = cell.pop("value")  # stays the last
    return cells


def _note_left_out(page: Page, panels: Mapping[str, Any]) -> None:
    if len(panels) > MOST_PANELS:
        rest = len(panels) - MOST_PANELS
        page.text(f"{rest} more are not drawn; their numbers are in the run folders.")


def _mark_figures(
    part: StudyPart, groups: Mapping[str, Sequence[RunRecord]], palette: Palette
) -> list[Figure]:
    runs = [run for runs in groups.values() for run in runs]
    rows = []
    for run in runs:
        for mark, matrix in mapping(run.analysis.get("first_token_share_by_mark")).items():
            value = mean_share(average([matrix]))
            if value is not None:
                name = mark.replace("_", "-")
                rows.append({**who(run), "mark": name, "value": rounded(value)})
    if not rows:
        return []
    uniform = uniform_share(runs)
    chart = intervals.marked(
        rows,
        palette,
        title="First-token share by kind of query",
        x_title="share of attention",
        x_domain=share_domain(rows, uniform),
        reference=uniform,
    )
    caption = "One point a seed, mean over layers and heads."
    if uniform is not None:
        caption += f" Dashed: uniform attention over all queries, {short(uniform)}"
        by_mark = mapping(runs[0].analysis.get("uniform_share_by_mark"))
        each = [f"{mark.replace('_', '-')} {short(value)}" for mark, value in by_mark.items()]
        caption += f" ({', '.join(each)})." if each else "."
    return [Figure(f"{part.name}-first-token-share-by-mark", chart, caption)]


def one_seed(runs: Sequence[RunRecord]) -> tuple[list[str], str]:
    """Return captions with each run's seed; if all have one seed, a sentence says so."""
    if len({run.seed for run in runs}) == 1:
        return [""] * len(runs), f"Seed {runs[0].seed} of each arm."
    return [f"Seed {run.seed}." for run in runs], ""


def _with_maps(runs: Sequence[RunRecord]) -> RunRecord | None:
    for run in runs:
        drawn = mapping(run.analysis.get("attention_maps"))
        if drawn.get("tokens") and drawn.get("maps"):
            return run
    return None
