"""Sections on the loss under interventions, and on streaming."""

from __future__ import annotations

from collections.abc import Sequence

from gatelm.report.charts.theme import Palette
from gatelm.report.model.entry import Looked
from gatelm.report.page import Column, Page, swatch
from gatelm.report.sections import Rows, place_rows, profile
from gatelm.study.results.numbers import count, is_number, short


def add_interventions(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    """Add the loss with a part forced, zeroed or clamped, beside the unchanged model's."""
    page.text(
        "The loss on the same text when a part of the model is changed while it runs; weights "
        "stay as they are. An increase near 0 means that the model does not need it."
    )
    rows = [
        [
            swatch(palette.of(m.name), m.name),
            str(effect.get("what")),
            short(effect.get("loss"), 4),
            str(effect.get("skipped") or short(effect.get("increase"), 3, sign=True)),
        ]
        for m in models
        for effect in m.interventions
    ]
    columns = [
        Column("Model"),
        Column("Change"),
        Column("Loss (nats per token)", "right"),
        Column("Increase", "right"),
    ]
    page.table(columns, rows)


def add_streaming(page: Page, models: Sequence[Looked], palette: Palette) -> None:
    """Add the loss of a long text in a window cache that keeps 0, 1, 2 or 4 first tokens."""
    streamed = [m for m in models if m.streaming.get("rows")]
    for m in models:
        if m.streaming.get("error"):
            page.note(f"{m.name} was not streamed: {m.streaming['error']}.", "warning")
    if not streamed:
        return
    table = streamed[0].streaming
    page.text(
        f"{count(table.get('tokens'))} tokens through a cache of "
        f"{count(table.get('window_tokens'))} last tokens and so many first ones. "
        f"{table.get('note', '')}"
    )
    lines: Rows = []
    rows = []
    for m in streamed:
        entries = m.streaming["rows"]
        kept = [e["first_tokens"] for e in entries]
        lines += place_rows(m, kept, [e["loss"] for e in entries], 6)
        reference = m.streaming.get("reference") or {}
        rows.append(
            [
                swatch(palette.of(m.name), m.name),
                *(short(e.get("perplexity"), 4) for e in entries),
                short(reference.get("perplexity"), 4),
            ]
        )
    title = "Loss by the number of first tokens kept"
    titles = (title, "first tokens in the cache", "nats per token")
    page.chart(*profile("streamed-loss", lines, palette, titles))
    columns = [
        Column("Model"),
        *(Column(f"{e['first_tokens']} first tokens", "right") for e in table["rows"]),
        Column("Each window from its start", "right"),
    ]
    same = [row for row in rows if len(row) == len(columns)]
    page.table(columns, same, "Perplexity.")
    if any(not is_number(e.get("perplexity")) for m in streamed for e in m.streaming["rows"]):
        page.text("A dash: too large to write.")
