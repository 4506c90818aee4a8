"""Where attention goes in each model: first keys, distances, sinks at any key, maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from gatelm.report.charts import heatmaps, profiles
from gatelm.report.charts.theme import Palette
from gatelm.report.load import mapping
from gatelm.report.model.entry import Looked, Rows, head_means
from gatelm.report.page import Column, Control, Figure, Page, swatch
from gatelm.report.study.attention import share_top
from gatelm.study.results.numbers import count, is_number, percent, rounded, short

MOST_MODELS = 8
"""Models with a heatmap or a map of their own."""

SHOWN_POSITIONS = 24


def add_attention(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    """The first token's share: a line over layers for all models, a heatmap for each."""
    rows = [row for m in models for row in m.rows(m.layers, head_means(_share(m)))]
    if not rows:
        page.note("No layer's attention could be read.", "warning")
        return
    uniform = next((m.analysis.get("uniform_share") for m in models if m.layers), None)
    page.text(
        "The attention that queries give to the first token of their document: the mean over "
        "queries from the second on. "
        + (f"Dashed: uniform attention, {short(uniform)}." if is_number(uniform) else "")
    )
    chart = profiles.layer_profile(
        rows,
        palette,
        title="Attention on the first token, mean over heads",
        x_title="layer",
        y_title="share of attention",
        y_domain=(0.0, share_top([row["value"] for row in rows], uniform)),
        reference=uniform,
    )
    page.chart(Figure("first-token-share", chart))
    page.charts(
        [
            Figure(
                f"first-token-share-{m.name}",
                heatmaps.share_by_head(_cells(m, _share(m)), title=m.name, whose="model"),
                f"Mean {short(m.metric('first_token_share'))}.",
            )
            for m in models[:MOST_MODELS]
            if _cells(m, _share(m))
        ],
        min_width=300,
    )
    _note_rest(page, models)


def _share(model: Looked) -> Any:
    return model.analysis.get("first_token_share") or []


def _cells(model: Looked, by_head: Any) -> Rows:
    return [
        {"label": model.name, "layer": layer, "head": head, "value": rounded(value)}
        for layer, heads in zip(model.layers, by_head, strict=False)
        for head, value in enumerate(heads)
        if is_number(value)
    ]


def _note_rest(page: Page, models: Sequence[Looked]) -> None:
    if len(models) > MOST_MODELS:
        page.text(
            f"{len(models) - MOST_MODELS} more models are not drawn; their numbers are in "
            "analysis.json and heads.csv."
        )


def add_profiles(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    """What is carried from the first token, the first m keys, distances, entropy."""
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
        rows = [
            row
            for m in models
            for row in m.rows(m.detail.get("layers") or (), head_means(m.detail.get(key)))
        ]
        if rows:
            chart = profiles.layer_profile(
                rows,
                palette,
                title=title,
                x_title="layer",
                y_title="share, by norm",
                y_domain=(0.0, share_top([row["value"] for row in rows], None)),
            )
            figures.append(Figure(name, chart, "Mean over heads."))
    return figures


def _leading(models: Sequence[Looked], palette: Palette) -> list[Figure]:
    rows: Rows = []
    for m in models:
        by_count = mapping(m.detail.get("leading_share"))
        means = [_mean(head_means(by_head)) for by_head in by_count.values()]
        rows += m.rows(by_count, means)
    if not rows:
        return []
    uniform = mapping(models[0].detail.get("leading_uniform"))
    beside = ", ".join(f"{m}: {short(_mean(values))}" for m, values in uniform.items())
    chart = profiles.layer_profile(
        rows,
        palette,
        title="Attention on the first m keys together",
        x_title="m",
        y_title="share of attention",
        y_domain=(0.0, 1.0),
    )
    return [Figure("leading-keys", chart, f"Mean over layers and heads. Uniform: {beside}.")]


def _distances(models: Sequence[Looked], palette: Palette) -> list[Figure]:
    rows: Rows = []
    for m in models:
        distance = mapping(m.detail.get("distance"))
        labels = bin_labels(distance.get("edges") or ())
        whole, first = (
            _over_layers(distance.get("mean")),
            _over_layers(distance.get("on_first_token")),
        )
        rest = [a - b for a, b in zip(whole, first, strict=False)]
        rows += m.rows(labels, rest)
    if not rows:
        return []
    uniform = _over_layers(mapping(models[0].detail.get("distance")).get("uniform"))
    labels = bin_labels(mapping(models[0].detail.get("distance")).get("edges") or ())
    beside = ", ".join(f"{d}: {short(v, 2)}" for d, v in zip(labels, uniform, strict=False))
    chart = profiles.layer_profile(
        rows,
        palette,
        title="Attention by distance, without the first token",
        x_title="distance from query to key, in tokens",
        y_title="share of attention",
    )
    caption = f"Mean over queries, heads and layers. Uniform, first token included: {beside}."
    return [Figure("distance", chart, caption)]


def _entropies(models: Sequence[Looked], palette: Palette) -> list[Figure]:
    rows = [
        row
        for m in models
        for row in m.rows(m.layers, head_means(m.analysis.get("normalized_entropy")))
    ]
    if not rows:
        return []
    chart = profiles.layer_profile(
        rows,
        palette,
        title="Attention entropy over its largest value",
        x_title="layer",
        y_title="normalised entropy",
        y_domain=(0.0, 1.0),
    )
    return [Figure("entropy", chart, "Mean over heads. 1: every key gets the same.")]


def bin_labels(edges: Sequence[int]) -> list[str]:
    """`0`, `1`, `2-3`, `4-7`, ... of the edges of bins."""
    return [str(low) if high == low + 1 else f"{low}-{high - 1}" for low, high in pairwise(edges)]


def _over_layers(by_layer: Any) -> list[float]:
    """The mean over layers, bin by bin."""
    layers = [layer for layer in by_layer or () if all(map(is_number, layer))]
    return [sum(values) / len(values) for values in zip(*layers, strict=True)]


def _mean(values: Any) -> float | None:
    known = [float(v) for v in values or () if is_number(v)]
    return sum(known) / len(known) if known else None


def add_sinks(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    """At which positions and on which tokens sinks stand."""
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
        rates = mapping(m.detail.get("sinks")).get("rate_by_position") or []
        rows += m.rows(range(1, SHOWN_POSITIONS + 1), rates[:SHOWN_POSITIONS])
    if any(row["value"] for row in rows):
        chart = profiles.layer_profile(
            rows,
            palette,
            title=f"Sink rate by key position, the first {SHOWN_POSITIONS}",
            x_title="key position (1: the first token)",
            y_title="share of heads and rows",
            y_domain=(0.0, 1.0),
        )
        page.chart(Figure("sink-positions", chart, "All positions are in analysis.json."))
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


def add_maps(page: Page, models: Sequence[Looked]) -> None:
    """The attention maps of one sample, with controls for layer and head."""
    drawn = [
        (m, mapping(m.analysis.get("attention_maps")))
        for m in models[:MOST_MODELS]
        if mapping(m.analysis.get("attention_maps")).get("maps")
    ]
    if not drawn:
        return
    page.section("Attention maps of one sample", level=3)
    page.text(
        "Rows are queries, columns keys, on a fixed scale from 0 to 1, the same for all models. "
        "Without the first column each map takes a scale of its own, up to its largest remaining "
        "value: compare patterns then, not colours."
    )
    figures, layers, heads = [], set(), set()
    for model, entry in drawn:
        maps = entry["maps"][: heatmaps.MAX_MAPS]
        layers |= {one["layer"] for one in maps}
        heads |= {one["head"] for one in maps}
        chart = heatmaps.attention_map(entry["tokens"], maps, title=model.name)
        figures.append(Figure(f"attention-map-{model.name}", chart, width=320))
    controls = [
        Control("layer", "Layer", [(layer, str(layer)) for layer in sorted(layers)]),
        Control("head", "Head", [(head, str(head)) for head in sorted(heads)]),
        Control("first", "First column", [("show", "shown"), ("hide", "hidden, colours rescaled")]),
    ]
    page.charts(figures, controls, min_width=310)
