"""Sections on the findings, in sentences and one table, and on how they were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gatelm.analysis.metrics.registry import METRICS
from gatelm.report.charts.theme import Palette
from gatelm.report.metrics import describe
from gatelm.report.model.entry import Looked
from gatelm.report.page import Column, Html, Page, join, swatch, swatched
from gatelm.study.results.numbers import MISSING, count, duration, is_number, percent, short

MASSIVE_ABS, MASSIVE_RATIO = 100.0, 1000.0

HEADLINES = (
    "val_loss",
    "val_bits_per_byte",
    "first_token_share",
    "first_token_share_uniform",
    "leading_4_share",
    "sink_rate",
    "sink_rate_any",
    "sinks_on_first_token",
    "sinks_on_delimiters",
    "value_share",
    "gated_share",
    "value_norm_ratio",
    "attention_entropy_normalized",
    "max_logit",
    "max_activation",
    "activation_ratio",
    "massive_count",
    "norm_ratio",
    "activation_kurtosis",
    "attention_output_inf_norm",
    "attention_output_kurtosis",
    "heads_effective_rank",
    "branch_effective_rank",
    "gate_mean",
    "gate_median",
    "gate_below_0.1",
    "gate_above_0.9",
    "gate_token_std",
    "gate_dead_heads",
    "gate_open_heads",
)
"""Metrics of the summary table, in this order."""


def add_findings(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    """Add a few sentences per model: sinks, massive activations, gates, unread layers."""
    for model in models:
        if len(models) > 1:
            page.section(model.name, level=3)
        page.items(swatched(palette.of(model.name), text) for text in findings(model))
        for text in notes(model):
            page.note(text, "warning")


def findings(model: Looked) -> list[str]:
    """Return sentences on notable results, each with its number."""
    return [*_sinks(model), *_massive(model), *_gates(model)]


def notes(model: Looked) -> list[str]:
    """Return sentences on what is not known about this model."""
    out = []
    if model.unread:
        by_reason: dict[str, list[str]] = {}
        for layer, reason in model.unread.items():
            by_reason.setdefault(str(reason), []).append(layer)
        for reason, layers in by_reason.items():
            out.append(f"The attention of {_layers(layers)} was not read: {reason}.")
    if model.gate_note:
        out.append(model.gate_note.rstrip(".") + ".")
    return out


def _layers(layers: Sequence[str]) -> str:
    return f"layer {layers[0]}" if len(layers) == 1 else f"layers {', '.join(layers)}"


def _sinks(model: Looked) -> list[str]:
    share, uniform = model.metric("first_token_share"), model.metric("first_token_share_uniform")
    if share is None or uniform is None:
        return ["No attention was read."]
    times = share / uniform
    out = [
        f"Queries give the first token {percent_of(share)} of their attention; uniform attention "
        f"would give {percent_of(uniform)} ({short(times, 2)} times less)."
        if times >= 1
        else f"Queries give the first token {percent_of(share)} of their attention, less than "
        f"uniform attention would ({percent_of(uniform)})."
    ]
    rate = model.metric("sink_rate")
    if rate is not None:
        out.append(
            f"The first token is a sink (importance above 0.3) in {percent_of(rate)} of documents, "
            f"layers and heads{_elsewhere(model)}."
        )
    value, gated = model.metric("value_share"), model.metric("gated_share")
    if value is not None:
        text = f"Of what the heads carry, by norm, {percent_of(value)} comes from the first token"
        after = f", {percent_of(gated)} after the gate" if gated is not None else ""
        out.append(f"{text}{after}.")
    return out


def _elsewhere(model: Looked) -> str:
    delimiters = model.metric("sinks_on_delimiters")
    first = model.metric("sinks_on_first_token")
    if delimiters is None or first is None:
        return ""
    total = (model.detail.get("sinks") or {}).get("total")
    return (
        f"; of all {count(total)} sinks, {percent_of(first)} are first tokens and "
        f"{percent_of(delimiters)} later delimiters"
    )


def _massive(model: Looked) -> list[str]:
    places = (model.analysis.get("residual") or {}).get("largest") or []
    found = [(p.get("value"), i - 1, p) for i, p in enumerate(places) if is_number(p.get("value"))]
    if not found:
        return []
    value, layer, place = max(found[1:] or found, key=lambda entry: entry[0])
    ratio = model.metric("activation_ratio")
    massive = model.metric("massive_count")
    verdict = (
        "massive activations"
        if massive
        else f"no massive activation (above {MASSIVE_ABS:g} and {MASSIVE_RATIO:g} times the median)"
    )
    text = (
        f"The largest activation is {short(value, 4)}, after layer {layer}, at position "
        f"{place.get('position')}, channel {place.get('channel')}"
    )
    if ratio is not None:
        text += f"; the largest over the median is {short(ratio)} in the worst layer"
    return [f"{text}: {verdict}."]


def _gates(model: Looked) -> list[str]:
    mean = model.metric("gate_mean")
    if mean is None:
        return [] if model.gate_note else ["The model has no gate."]
    shut, dead = model.metric("gate_below_0.1"), model.metric("gate_dead_heads")
    opened, varies = model.metric("gate_open_heads"), model.metric("gate_token_std")
    out = [
        f"The mean gate score is {short(mean)}; {percent_of(shut)} of scores are below 0.1, and a "
        f"head's score varies between tokens by {short(varies)} (standard deviation)."
    ]
    if dead or opened:
        out.append(
            f"{percent_of(dead)} of gated heads are dead (99 % of scores below 0.1), "
            f"{percent_of(opened)} always open (99 % above 0.9)."
        )
    return out


def percent_of(value: float | None) -> str:
    """Format a share as a percentage of about three digits."""
    return MISSING if value is None else percent(float(f"{value:.3g}"))


def add_models(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    """Add the facts of each model, then all metrics, with differences from the first model."""
    columns = [
        Column("Model"),
        Column("Family"),
        Column("Parameters", "right"),
        Column("Layers", "right"),
        Column("Precision"),
        Column("Rows begin with"),
        Column("Time", "right"),
    ]
    page.table(
        columns,
        [
            [
                swatch(palette.of(m.name), m.name),
                m.entry.get("family"),
                count(m.entry.get("parameters")),
                count(m.analysis.get("num_layers")),
                m.entry.get("dtype"),
                _first_token(m),
                duration(m.entry.get("seconds")),
            ]
            for m in models
        ],
        "The models.",
    )
    names = [n for n in HEADLINES if any(m.metric(n) is not None for m in models)]
    heads = [Column(m.name, "right") for m in models]
    rows = [
        [
            Html('<span title="{}">{}</span>').format(
                describe(name).definition, describe(name).axis
            ),
            *(_cell(name, model, models[0]) for model in models),
        ]
        for name in names
    ]
    caption = "Metrics; their definitions are at the end."
    if len(models) > 1:
        caption += f" Small: the difference from {models[0].name}."
    page.table([Column("Metric"), *heads], rows, caption)


def _first_token(model: Looked) -> str:
    first = model.entry.get("first_token") or {}
    if first.get("id") is None:
        return MISSING
    return f"{first.get('text')!r} (id {first.get('id')}): {first.get('reason')}"


def _cell(name: str, model: Looked, first: Looked) -> Html:
    value, base = model.metric(name), first.metric(name)
    text = join(short(value, 4))
    if model is first or value is None or base is None:
        return text
    return join(text, Html("<small>"), short(value - base, sign=True), Html("</small>"))


def add_definitions(page: Page, results: Mapping[str, Any], models: Sequence[Looked]) -> None:
    """Add the text, the command, the versions and every metric's definition."""
    text = results.get("text") or {}
    if text:
        page.text(str(text.get("description") or ""))
    if results.get("command"):
        page.code(str(results["command"]))
    versions = results.get("versions") or {}
    if versions:
        page.text("Computed with: " + ", ".join(f"{k} {v}" for k, v in versions.items()) + ".")
    shown = {name for model in models for name in model.metrics}
    page.definitions(
        (
            join(metric.label, Html(" <code>"), name, Html("</code>")),
            metric.definition,
        )
        for name, metric in METRICS.items()
        if name in shown
    )
