"""Where attention goes: first-token share by layer and head, at marked positions, maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gatelm.report.charts import heatmaps, intervals
from gatelm.report.charts.axes import unique
from gatelm.report.charts.theme import Palette
from gatelm.report.load import RunRecord, StudyPart, mapping
from gatelm.report.page import Control, Figure, Page
from gatelm.study.results.numbers import is_number, rounded, short

FEW_CELLS = 8
MOST_PANELS = 12


def add_attention(page: Page, part: StudyPart, palette: Palette) -> None:
    """First-token share beside its uniform value, then the attention maps of one sample."""
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
        _add_maps(page, part, maps)


def uniform_share(runs: Iterable[RunRecord]) -> float | None:
    """The share that uniform attention would give, as the analysis recorded it."""
    values = (run.analysis.get("uniform_share") for run in runs)
    return next((float(v) for v in values if is_number(v)), None)  # type: ignore[arg-type]


def share_top(shares: Sequence[float], uniform: float | None) -> float:
    """The end of an axis of shares: 1, or where all are small a little above the largest."""
    most = max([*shares, uniform or 0.0])
    return 1.0 if most > 0.3 else rounded(1.15 * most, 2) or 1.0


def average(matrices: Sequence[Any]) -> list[list[float | None]]:
    """The mean of (layers, heads) matrices cell by cell, over the numbers there are.

    Matrices of another shape than the first's are left out; a cell without numbers is None.
    """
    good = [m for m in matrices if isinstance(m, list) and m and all(map(_is_row, m))]
    same = [m for m in good if [len(row) for row in m] == [len(row) for row in good[0]]]
    return [[_mean(cells) for cells in zip(*rows, strict=True)] for rows in zip(*same, strict=True)]


def _is_row(row: Any) -> bool:
    return isinstance(row, list) and bool(row)


def _mean(values: Iterable[Any]) -> float | None:
    numbers = [float(value) for value in values if is_number(value)]
    return sum(numbers) / len(numbers) if numbers else None


def mean_share(share: Sequence[Sequence[float | None]]) -> float | None:
    """The mean over all layers and heads that have a number."""
    return _mean(value for row in share for value in row)


def _shares(groups: Mapping[str, Sequence[RunRecord]]) -> dict[str, list[list[float | None]]]:
    found = {
        name: average([run.analysis.get("first_token_share") for run in runs])
        for name, runs in groups.items()
    }
    return {name: share for name, share in found.items() if mean_share(share) is not None}


def _add_shares(
    page: Page, part: StudyPart, groups: Mapping[str, Sequence[RunRecord]], shares: dict[str, Any]
) -> list[Figure]:
    """Text and, for models of many heads, a heatmap an arm; for small ones the one figure."""
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
            columns = unique(rows, "column")
            rows += [
                {"label": "uniform attention", "column": c, "value": rounded(uniform)}
                for c in columns
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


def _cells(
    name: str, share: Sequence[Sequence[float | None]], run: RunRecord
) -> list[dict[str, Any]]:
    """Cells of a heatmap; a model may have attention in some of its layers only."""
    layers = run.analysis.get("attention_layers")
    if not isinstance(layers, list) or len(layers) != len(share):
        layers = list(range(len(share)))
    return [
        {
            "label": name,
            "layer": layer,
            "head": head,
            "column": f"layer {layer}, head {head}",
            "value": rounded(value),
        }
        for layer, row in zip(layers, share, strict=True)
        for head, value in enumerate(row)
        if value is not None
    ]


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
                rows.append(
                    {
                        "arm": run.arm,
                        "label": run.label,
                        "seed": run.seed,
                        "mark": mark.replace("_", "-"),
                        "value": rounded(value),
                    }
                )
    if not rows:
        return []
    uniform = uniform_share(runs)
    chart = intervals.marked(
        rows,
        palette,
        title="First-token share by kind of query",
        x_title="share of attention",
        x_domain=(0.0, share_top([row["value"] for row in rows], uniform)),
        reference=uniform,
    )
    caption = "One point a seed, mean over layers and heads."
    if uniform is not None:
        caption += f" Dashed: uniform attention over all queries, {short(uniform)}"
        by_mark = mapping(runs[0].analysis.get("uniform_share_by_mark"))
        each = [f"{mark.replace('_', '-')} {short(value)}" for mark, value in by_mark.items()]
        caption += f" ({', '.join(each)})." if each else "."
    return [Figure(f"{part.name}-first-token-share-by-mark", chart, caption)]


def one_seed(figures: Sequence[Figure], seeds: Sequence[int | None]) -> tuple[list[Figure], str]:
    """A sentence that names the seed all figures show, or captions where they differ."""
    if len(set(seeds)) == 1:
        return list(figures), f"Seed {seeds[0]} of each arm."
    pairs = zip(figures, seeds, strict=True)
    return [replace(figure, caption=f"Seed {seed}.") for figure, seed in pairs], ""


def _with_maps(runs: Sequence[RunRecord]) -> RunRecord | None:
    for run in runs:
        drawn = mapping(run.analysis.get("attention_maps"))
        if drawn.get("tokens") and drawn.get("maps"):
            return run
    return None


def _add_maps(page: Page, part: StudyPart, maps: Mapping[str, RunRecord]) -> None:
    figures, seeds, layers, heads = [], [], set(), set()
    for name, run in list(maps.items())[:MOST_PANELS]:
        drawn = run.analysis["attention_maps"]
        entries = drawn["maps"][: heatmaps.MAX_MAPS]
        layers |= {entry["layer"] for entry in entries}
        heads |= {entry["head"] for entry in entries}
        chart = heatmaps.attention_map(drawn["tokens"], entries, title=name)
        seeds.append(run.seed)
        figures.append(Figure(f"{part.name}-attention-map-{name}", chart, width=320))
    figures, which = one_seed(figures, seeds)
    controls = [
        Control("layer", "Layer", [(layer, str(layer)) for layer in sorted(layers)]),
        Control("head", "Head", [(head, str(head)) for head in sorted(heads)]),
        Control("first", "First column", [("show", "shown"), ("hide", "hidden, colours rescaled")]),
    ]
    page.text(
        "Rows are queries, columns keys, on a fixed scale from 0 to 1. Without the first column "
        "each map takes a scale of its own, up to its largest remaining value: compare patterns "
        f"then, not colours. {which}"
    )
    page.charts(figures, controls, min_width=310)
    _note_left_out(page, maps)
