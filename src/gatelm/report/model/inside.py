"""Inside each model: activations, ranks, gates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from gatelm.report.charts import heatmaps, profiles
from gatelm.report.charts.theme import Palette
from gatelm.report.model.attention import MOST_MODELS
from gatelm.report.model.entry import Looked, Rows, log_domain, log_rows
from gatelm.report.page import Column, Figure, Page, swatch
from gatelm.report.study.inside import bins
from gatelm.study.results.numbers import MISSING, fixed, is_number, percent, rounded, short


def add_activations(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    """Along the residual stream, at the attention's output, and the largest entries."""
    page.text(
        "Along the residual stream, from the embedding to the last layer (before the final norm); "
        "means over rows. Dashed: a first token that is like the others (norm ratio 1), and the "
        "kurtosis of a normal distribution (3)."
    )
    figures = []
    for key, title, y_title, reference in (
        ("max_abs", "Largest activation", "max |h| (log)", None),
        ("ratio", "Largest over median activation", "ratio (log)", None),
        ("norm_ratio", "First token's norm over the others'", "norm ratio (log)", 1.0),
        ("kurtosis", "Kurtosis of activations", "kurtosis (log)", 3.0),
    ):
        rows = [row for m in models for row in m.depth(_residual(m).get(key))]
        figures += _profile(key, rows, palette, title, "after layer", y_title, reference)
    for key, title, y_title in (
        ("max_abs", "Attention output, infinity norm", "max |y| (log)"),
        ("kurtosis", "Attention output, kurtosis", "kurtosis (log)"),
    ):
        rows = [row for m in models for row in m.rows(*_columns(m.detail.get("outputs"), key))]
        figures += _profile(f"output-{key}", rows, palette, title, "layer", y_title, None)
    page.charts(figures)
    _add_largest(page, models, palette)


def _residual(model: Looked) -> Mapping[str, Any]:
    return model.analysis.get("residual") or {}


def _columns(entries: Any, key: str) -> tuple[list[Any], list[Any]]:
    entries = entries or ()
    return [entry.get("layer") for entry in entries], [entry.get(key) for entry in entries]


def _profile(
    name: str,
    rows: Rows,
    palette: Palette,
    title: str,
    x_title: str,
    y_title: str,
    reference: float | None,
    kind: Literal["linear", "log"] = "log",
) -> Iterator[Figure]:
    rows = log_rows(rows) if kind == "log" else rows
    if rows:
        chart = profiles.layer_profile(
            rows,
            palette,
            title=title,
            x_title=x_title,
            y_title=y_title,
            y_scale=kind,
            y_domain=log_domain(rows, reference) if kind == "log" else None,
            reference=reference,
        )
        yield Figure(name.replace("_", "-"), chart)


def _add_largest(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    """The largest entries of the place where each model's largest one is."""
    rows = []
    for m in models:
        massive = m.detail.get("massive") or []
        places = [(p["top"][0], i, p) for i, p in enumerate(massive) if p.get("top")]
        if not places:
            continue
        _, index, place = max(places[1:] or places, key=lambda entry: abs(entry[0]["value"]))
        channels = ", ".join(str(c["channel"]) for c in place["top_channels"])
        for rank, entry in enumerate(place["top"]):
            rows.append(
                [
                    swatch(palette.of(m.name), m.name) if not rank else "",
                    "embedding" if index == 0 else str(index - 1),
                    fixed(entry["value"], 1 if abs(entry["value"]) >= 100 else 3),
                    str(entry["position"]),
                    str(entry["channel"]),
                    repr(entry["token"]),
                    channels if not rank else "",
                    fixed(place["massive_per_sequence"], 1) if not rank else "",
                ]
            )
    if not rows:
        return
    columns = [
        Column("Model"),
        Column("After layer", "right"),
        Column("Value", "right"),
        Column("Position", "right", "in its row, from 0"),
        Column("Channel", "right"),
        Column("Token"),
        Column("Top channels", hint="by their largest |h| in a row, mean over rows"),
        Column("Massive in a row", "right", "above 100 and 1000 times the median of the row"),
    ]
    page.table(columns, rows, "The largest entries, at the layer where they are largest.")


def add_ranks(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    """Effective rank by layer, with and without the mean."""
    figures: list[Figure] = []
    for of, what in (("heads", "heads' outputs"), ("branch", "attention output")):
        for key, how in (("effective_rank", ""), ("effective_rank_centred", ", centred")):
            rows: Rows = []
            for m in models:
                entries = [e for e in m.detail.get("ranks") or () if e.get("of") == of]
                rows += m.rows(*_columns(entries, key))
            figures += _profile(
                f"rank-{of}-{key}",
                rows,
                palette,
                f"Effective rank of the {what}{how}",
                "layer",
                "effective rank",
                None,
                "linear",
            )
    if not figures:
        return
    page.section("Rank of what attention adds", level=3)
    sizes = {(e.get("tokens"), e.get("width")) for m in models for e in m.detail.get("ranks") or ()}
    least = min((tokens / width for tokens, width in sizes if width), default=None)
    page.text(
        "Over all tokens measured: heads' outputs are concatenated, after the gate where there is "
        "one. A sink or a massive channel dominates the singular values unless the mean over "
        "tokens is taken off (centred)."
    )
    if least is not None and least < 4:
        page.note(
            f"There are only {short(least)} tokens a channel: the rank is bounded by the number of "
            "tokens. Take more rows (--samples) for 4 or more.",
            "warning",
        )
    page.charts(figures)


def add_gates(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    """Mean by layer, by head, histograms, and the table of dead and always-open heads."""
    gated = [m for m in models if m.gates]
    if not gated:
        page.text("No gate was read.")
        return
    several = len({gate.get("site") for m in gated for gate in m.gates}) > 1
    rows = [
        row
        for m in gated
        for row in m.rows([_place(g, several) for g in m.gates], [g.get("mean") for g in m.gates])
    ]
    top = max([1.0, *(row["value"] for row in rows)])
    chart = profiles.layer_profile(
        rows,
        palette,
        title="Mean gate score by layer",
        x_title="layer and site" if several else "layer",
        y_title="gate score",
        y_domain=(0.0, top),
    )
    page.chart(Figure("gate-mean", chart))
    _add_heads(page, gated, several)
    _add_histograms(page, gated, palette, several)
    _add_table(page, gated, palette)


def _place(gate: Mapping[str, Any], several: bool) -> str:
    return f"{gate.get('layer')} {gate.get('site')}" if several else str(gate.get("layer"))


def _add_heads(page: Page, models: Sequence[Looked], several: bool) -> None:
    figures = []
    for m in models[:MOST_MODELS]:
        cells = [
            {
                "label": m.name,
                "layer": _place(gate, several),
                "head": head,
                "value": rounded(value),
            }
            for gate in m.gates
            for head, value in enumerate(gate.get("mean_by_head") or ())
            if is_number(value)
        ]
        if cells:
            chart = heatmaps.share_by_head(cells, title=f"{m.name}: mean gate score", whose="model")
            figures.append(Figure(f"gate-heads-{m.name}", chart))
    page.charts(figures, min_width=300)


def _add_histograms(page: Page, models: Sequence[Looked], palette: Palette, several: bool) -> None:
    figures = []
    for m in models[:MOST_MODELS]:
        rows = [row for gate in m.gates for row in bins(gate, several)]
        if rows:
            chart = profiles.ridges(
                rows, color=palette.of(m.name), title=m.name, x_title="gate score"
            )
            figures.append(Figure(f"gate-histogram-{m.name}", chart))
    if figures:
        page.text(
            "How often each gate score occurs, over all tokens, heads and channels. Each layer's "
            "histogram is scaled to its own highest bar; point at a bar for its share."
        )
        page.charts(figures, min_width=310)


def _add_table(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    rows = [
        [
            swatch(palette.of(m.name), m.name),
            str(gate.get("layer")),
            str(gate.get("site")),
            short(gate.get("mean")),
            percent(rounded(gate.get("below_0.1"), 3)),
            percent(rounded(gate.get("above_0.9"), 3)),
            short(gate.get("first_token_mean")),
            short(gate.get("token_std")),
            _heads(gate.get("dead_heads")),
            _heads(gate.get("open_heads")),
            _norms(gate.get("weight_norms")),
        ]
        for m in models
        for gate in m.gates
    ]
    columns = [
        Column("Model"),
        Column("Layer", "right"),
        Column("Site"),
        Column("Mean", "right"),
        Column("Below 0.1", "right"),
        Column("Above 0.9", "right"),
        Column("First token", "right", "mean score at the first token"),
        Column("Between tokens", "right", "standard deviation over tokens, mean over channels"),
        Column("Dead heads", hint="99 % of scores below 0.1"),
        Column("Always open", hint="99 % of scores above 0.9"),
        Column("Weight norm", "right", "of each head's projection rows: least to most"),
    ]
    page.table(columns, rows, "Every gate.")


def _heads(heads: Any) -> str:
    heads = list(heads or ())
    shown = ", ".join(str(head) for head in heads[:8])
    return f"{shown} and {len(heads) - 8} more" if len(heads) > 8 else shown or MISSING


def _norms(norms: Any) -> str:
    known = [float(norm) for norm in norms or () if is_number(norm)]
    return f"{short(min(known))} to {short(max(known))}" if known else MISSING
