"""Sections on the inside of each model: activations, ranks, gates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gatelm.report.charts import heatmaps
from gatelm.report.charts.theme import Palette
from gatelm.report.model.attention import MOST_MODELS
from gatelm.report.model.entry import Looked
from gatelm.report.page import Column, Figure, Page, swatch
from gatelm.report.sections import (
    GatePlaces,
    Rows,
    add_histograms,
    depth_rows,
    gate_histogram,
    gate_means,
    gates_of,
    head_cells,
    place_rows,
    profile,
)
from gatelm.study.results.numbers import MISSING, fixed, is_number, percent, rounded, short


def add_activations(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    """Add activations along the residual stream and at the attention's output."""
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
        rows = [row for m in models for row in depth_rows(m, key)]
        titles = (title, "after layer", y_title)
        name = key.replace("_", "-")
        figures += profile(name, rows, palette, titles, kind="log", reference=reference)
    for key, title, y_title in (
        ("max_abs", "Attention output, infinity norm", "max |y| (log)"),
        ("kurtosis", "Attention output, kurtosis", "kurtosis (log)"),
    ):
        rows = [row for m in models for row in _layer_rows(m, m.detail.get("outputs"), key)]
        name = f"output-{key}".replace("_", "-")
        figures += profile(name, rows, palette, (title, "layer", y_title), kind="log")
    page.charts(figures)
    _add_largest(page, models, palette)


def _layer_rows(model: Looked, entries: Any, key: str) -> Rows:
    """Return rows with one value of each layer's entry."""
    entries = entries or ()
    return place_rows(model, (e.get("layer") for e in entries), (e.get(key) for e in entries))


def _add_largest(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    """Add the largest entries at the place of each model's largest one."""
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
    """Add the effective rank by layer, with and without the mean."""
    figures: list[Figure] = []
    for of, what in (("heads", "heads' outputs"), ("branch", "attention output")):
        for key, how in (("effective_rank", ""), ("effective_rank_centred", ", centred")):
            rows: Rows = []
            for m in models:
                entries = [e for e in m.detail.get("ranks") or () if e.get("of") == of]
                rows += _layer_rows(m, entries, key)
            name = f"rank-{of}-{key}".replace("_", "-")
            titles = (f"Effective rank of the {what}{how}", "layer", "effective rank")
            figures += profile(name, rows, palette, titles)
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
    """Add gate means by layer and head, histograms, and the table of dead and always-open heads."""
    gated = [m for m in models if gates_of(m)]
    if not gated:
        page.text("No gate was read.")
        return
    places = GatePlaces(gated)
    page.chart(*gate_means("gate-mean", gated, palette, places, "gate score"))
    heads = []
    for m in gated[:MOST_MODELS]:
        gates = gates_of(m)
        means = (gate.get("mean_by_head") for gate in gates)
        cells = head_cells(m.name, map(places.of, gates), means)
        if cells:
            chart = heatmaps.share_by_head(cells, title=f"{m.name}: mean gate score", whose="model")
            heads.append(Figure(f"gate-heads-{m.name}", chart))
    page.charts(heads, min_width=300)
    histograms: list[Figure] = []
    for m in gated[:MOST_MODELS]:
        histograms += gate_histogram(f"gate-histogram-{m.name}", m, palette, places)
    add_histograms(page, histograms, sample="")
    _add_table(page, gated, palette)


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
        for gate in gates_of(m)
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
