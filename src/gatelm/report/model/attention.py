"""Sections on attention in each model: first keys, distances, sinks at any key, maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from gatelm.report.charts import heatmaps
from gatelm.report.charts.theme import Palette
from gatelm.report.load import mapping
from gatelm.report.model.entry import Looked, head_means
from gatelm.report.page import Column, Figure, Page, swatch
from gatelm.report.sections import (
    Maps,
    Rows,
    add_maps,
    head_cells,
    place_rows,
    profile,
    share_domain,
)
from gatelm.study.results.numbers import count, is_number, mean, percent, rounded, short

MOST_MODELS = 8
"""Largest number of models that get a heatmap or a map of their own."""

SHOWN_POSITIONS = 24


def add_attention(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    """Add the first token's share: a line over layers for all models, a heatmap for each."""
    rows = [row for m in models for row in place_rows(m, m.layers, head_means(_share(m)))]
    if not rows:
        page.note("No layer's attention could be read.", "warning")
        return
    uniform = next((m.analysis.get("uniform_share") for m in models if m.layers), None)
    page.text(
        "The attention that queries give to the first token of their document: the mean over "
        "queries from the second on. "
        + (f"Dashed: uniform attention, {short(uniform)}." if is_number(uniform) else "")
    )
    titles = ("Attention on the first token, mean over heads", "layer", "share of attention")
    domain = share_domain(rows, uniform)
    page.chart(
        *profile("first-token-share", rows, palette, titles, domain=domain, reference=uniform)
    )
    page.charts(
        [
            Figure(
                f"first-token-share-{m.name}",
                heatmaps.share_by_head(cells, title=m.name, whose="model"),
                f"Mean {short(m.metric('first_token_share'))}.",
            )
            for m in models[:MOST_MODELS]
            if (cells := head_cells(m.name, m.layers, _share(m)))
        ],
        min_width=300,
    )
    if len(models) > MOST_MODELS:
        page.text(
            f"{len(models) - MOST_MODELS} more models are not drawn; their numbers are in "
            "analysis.json and heads.csv."
        )


def _share(model: Looked) -> Any:
    return model.analysis.get("first_token_share") or []


def add_profiles(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    """Add the first token's carried share, the first m keys, distances and entropy."""
    figures = [
        *_carried(models, palette),
        *_leading(models, palette),
        *_distances(models, palette),
        *_entropies(models, palette),
    ]
    if figures:
        page.section("What it carries, and how far", level=3)
        page.text(
            "A weight moves nothing by itself: what a key adds is weight times value, and a gate "
            "after attention scales that again. The first chart gives the first token's part of "
            "what is added, by norm. By distance: the weight in bins whose width doubles, so that "
            "uniform attention too puts more into the later ones; its values stand below."
        )
        page.charts(figures)


def _carried(models: Sequence[Looked], palette: Palette) -> list[Figure]:
    figures = []
    for key, name, title in (
        ("value_share", "carried", "First token's part of what heads carry"),
        ("gated_share", "carried-gated", "The same after the gate"),
    ):
        rows: Rows = []
        for m in models:
            rows += place_rows(m, m.detail.get("layers") or (), head_means(m.detail.get(key)))
        titles = (title, "layer", "share, by norm")
        domain, caption = share_domain(rows), "Mean over heads."
        figures += profile(name, rows, palette, titles, domain=domain, caption=caption)
    return figures


def _leading(models: Sequence[Looked], palette: Palette) -> list[Figure]:
    rows: Rows = []
    for m in models:
        shares = mapping(m.detail.get("leading_share"))
        rows += place_rows(m, shares, (mean(head_means(heads)) for heads in shares.values()))
    if not rows:
        return []
    uniform = mapping(models[0].detail.get("leading_uniform"))
    beside = ", ".join(f"{m}: {short(mean(values or ()))}" for m, values in uniform.items())
    titles = ("Attention on the first m keys together", "m", "share of attention")
    caption = f"Mean over layers and heads. Uniform: {beside}."
    return profile("leading-keys", rows, palette, titles, domain=(0.0, 1.0), caption=caption)


def _distances(models: Sequence[Looked], palette: Palette) -> list[Figure]:
    rows: Rows = []
    for m in models:
        distance = mapping(m.detail.get("distance"))
        whole = _over_layers(distance.get("mean"))
        first = _over_layers(distance.get("on_first_token"))
        rest = [a - b for a, b in zip(whole, first, strict=False)]
        rows += place_rows(m, bin_labels(distance.get("edges") or ()), rest)
    if not rows:
        return []
    distance = mapping(models[0].detail.get("distance"))
    bins = zip(
        bin_labels(distance.get("edges") or ()), _over_layers(distance.get("uniform")), strict=False
    )
    beside = ", ".join(f"{label}: {short(value, 2)}" for label, value in bins)
    titles = (
        "Attention by distance, without the first token",
        "distance from query to key, in tokens",
        "share of attention",
    )
    caption = f"Mean over queries, heads and layers. Uniform, first token included: {beside}."
    return profile("distance", rows, palette, titles, caption=caption)


def _entropies(models: Sequence[Looked], palette: Palette) -> list[Figure]:
    rows: Rows = []
    for m in models:
        rows += place_rows(m, m.layers, head_means(m.analysis.get("normalized_entropy")))
    titles = ("Attention entropy over its largest value", "layer", "normalised entropy")
    caption = "Mean over heads. 1: every key gets the same."
    return profile("entropy", rows, palette, titles, domain=(0.0, 1.0), caption=caption)


def bin_labels(edges: Sequence[int]) -> list[str]:
    """Label bins by their edges: `0`, `1`, `2-3`, `4-7`, ..."""
    return [str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(edges)]


def _over_layers(by_layer: Any) -> list[float]:
    """Return the mean over layers, bin by bin."""
    layers = [layer for layer in by_layer or () if all(map(is_number, layer))]
    return [sum(values) / len(values) for values in zip(*layers, strict=True)]


def add_sinks(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    """Add the positions and the tokens of sinks."""
    sinks = {m.name: mapping(m.detail.get("sinks")) for m in models if m.detail.get("sinks")}
    if not sinks:
        page.text("Sinks at other keys were not measured.")
        return
    threshold = next(iter(sinks.values())).get("threshold")
    page.text(
        f"A key is a sink of a head when its importance, the mean weight over the queries that "
        f"see it, is above {short(threshold)}. Counted are keys that at least 16 queries see, in "
        "all heads, layers and rows. A sink need not be at the first token: without BOS it often "
        "stands on the first full stop or line end."
    )
    rows: Rows = []
    for m in models:
        rates = sinks.get(m.name, {}).get("rate_by_position") or []
        rows += place_rows(m, range(1, SHOWN_POSITIONS + 1), rates)
    if any(row["value"] for row in rows):
        titles = (
            f"Sink rate by key position, the first {SHOWN_POSITIONS}",
            "key position (1: the first token)",
            "share of heads and rows",
        )
        caption = "All positions are in analysis.json."
        page.chart(
            *profile("sink-positions", rows, palette, titles, domain=(0.0, 1.0), caption=caption)
        )
    _add_sink_tokens(page, models, sinks, palette)


def _add_sink_tokens(
    page: Page, models: Sequence[Looked], sinks: Mapping[str, Mapping[str, Any]], palette: Palette
) -> None:
    rows = []
    for m in models:
        found = sinks.get(m.name, {})
        for entry in (found.get("tokens") or ())[:16]:
            rows.append(
                [
                    swatch(palette.of(m.name), m.name),
                    repr(entry.get("token")),
                    "first of its row" if entry.get("where") == "first" else "later",
                    count(entry.get("sinks")),
                    percent(rounded(entry.get("share"), 3)),
                    percent(rounded(entry.get("rate"), 3)),
                ]
            )
        if not found.get("total"):
            rows.append([swatch(palette.of(m.name), m.name), "no sink", "", "0", "", ""])
    columns = [
        Column("Model"),
        Column("Token"),
        Column("Where"),
        Column("Sinks", "right", "(key, head) pairs above the threshold"),
        Column("Of all sinks", "right"),
        Column("Of its keys", "right", "sinks over all (key, head) pairs of this token"),
    ]
    page.table(columns, rows, "The tokens that are sinks most often.")


def add_model_maps(page: Page, models: Sequence[Looked]) -> None:
    """Add the attention maps of one sample, with controls for layer and head."""
    drawn = [(m.name, mapping(m.analysis.get("attention_maps"))) for m in models[:MOST_MODELS]]
    panels = [Maps(f"attention-map-{name}", name, maps) for name, maps in drawn if maps.get("maps")]
    if panels:
        page.section("Attention maps of one sample", level=3)
        add_maps(page, panels, scale=", the same for all models")
