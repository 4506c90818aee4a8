"""Curves over training: loss, validation loss, and the first-token share of the health passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gatelm.report.charts import profiles
from gatelm.report.charts.theme import Palette
from gatelm.report.load import DIVERGED, FINISHED, RunRecord, StudyPart
from gatelm.report.metrics import describe
from gatelm.report.page import Figure
from gatelm.report.sections import share_top, who
from gatelm.report.study.outcome import MOST_SETTINGS
from gatelm.study.results.numbers import is_number, rounded

MOST_POINTS = 160
SMOOTHING = 0.9
SKIPPED = 0.15
"""Share of the steps whose loss may lie above the top of the chart."""


def smooth(values: Sequence[float], weight: float = SMOOTHING) -> list[float]:
    """Compute an exponential moving average, unbiased at the start."""
    out, total, norm = [], 0.0, 0.0
    for value in values:
        total = weight * total + (1 - weight) * value
        norm = weight * norm + (1 - weight)
        out.append(total / norm)
    return out


def thin(rows: Sequence[Any], most: int = MOST_POINTS) -> list[Any]:
    """Choose about `most` rows evenly, always with the last one."""
    stride = max(1, -(-len(rows) // most))
    kept = list(rows[::stride])
    if rows and kept[-1] is not rows[-1]:
        kept.append(rows[-1])
    return kept


def training_figures(part: StudyPart, palette: Palette) -> list[Figure]:
    """Draw training loss (smoothed), validation loss and first-token share by step.

    A part with axes gets one chart a setting instead, of the validation loss.
    """
    places = part.settings()
    if len(places) > 1:
        return [f for place in places[:MOST_SETTINGS] for f in _validation(part, palette, place)]
    out = []
    train = [row for run in part.runs for row in _curve(run, run.train, "loss", smoothed=True)]
    if train:
        chart = profiles.curves(
            train,
            palette,
            title="Training loss",
            x_title="step",
            y_title="loss (nats per token)",
            y_domain=_domain(train),
        )
        caption = (
            f"One line a seed, moving average (weight {SMOOTHING:g} on the past) of the logged "
            "losses. The first steps may lie above the top. A click on an arm in the legend brings "
            "it forward."
        )
        out.append(Figure(f"{part.name}-training-loss", chart, _broken(caption, train)))
    out += _validation(part, palette, places[0])
    out += _health(part, palette)
    return out


def _validation(part: StudyPart, palette: Palette, place: str) -> list[Figure]:
    runs = [run for run in part.runs if run.setting == place]
    rows = [row for run in runs for row in _curve(run, run.evals, "val_loss")]
    if not rows:
        return []
    chart = profiles.curves(
        rows,
        palette,
        title=f"Validation loss{': ' if place else ''}{place}",
        x_title="step",
        y_title="loss (nats per token)",
        y_domain=_domain(rows),
        points="all",
    )
    caption = _broken("Held-out data, one line a seed, not smoothed.", rows)
    name = "-".join(filter(None, (part.name, "validation-loss", place)))
    return [Figure(name, chart, caption)]


def _health(part: StudyPart, palette: Palette) -> list[Figure]:
    rows = [row for run in part.runs for row in _curve(run, run.health, "first_token_share")]
    if len({row["x"] for row in rows}) < 2:
        return []
    lines = [line for run in part.runs for line in run.health]
    uniform = next(
        (line[key] for line in lines if is_number(line.get(key := "first_token_share_uniform"))),
        None,
    )
    metric = describe("first_token_share")
    chart = profiles.curves(
        rows,
        palette,
        title=f"{metric.label} over training",
        x_title="step",
        y_title=metric.axis,
        y_domain=(0.0, share_top((row["y"] for row in rows), uniform)),
        reference=uniform,
        points="all",
    )
    caption = "From the health passes during training, on held-out data."
    if uniform is not None:
        caption += f" Dashed: uniform attention, {uniform:.3f}."
    return [Figure(f"{part.name}-first-token-share-by-step", chart, caption)]


def _curve(
    run: RunRecord, lines: Sequence[Mapping[str, Any]], key: str, *, smoothed: bool = False
) -> list[dict[str, Any]]:
    kept = [line for line in lines if is_number(line.get("step")) and is_number(line.get(key))]
    values = [float(line[key]) for line in kept]
    if smoothed:
        values = smooth(values)
    points = thin(list(zip((line["step"] for line in kept), values, strict=True)))
    rows: list[dict[str, Any]] = [{**who(run), "x": x, "y": rounded(y)} for x, y in points]
    if rows and run.status != FINISHED:
        rows[-1]["end"] = run.status
    return rows


def _domain(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    """Return the range of values after the first steps, without diverged runs."""
    whole = {(row["label"], row["seed"]) for row in rows if row.get("end") == DIVERGED}
    calm = [row for row in rows if (row["label"], row["seed"]) not in whole] or list(rows)
    start = SKIPPED * max(row["x"] for row in calm)
    low = min(row["y"] for row in calm)
    high = max((row["y"] for row in calm if row["x"] >= start), default=low)
    pad = 0.04 * (high - low)
    return (rounded(low - pad) or 0.0, rounded(high + pad) or 0.0) if high > low else None


def _broken(caption: str, rows: Sequence[Mapping[str, Any]]) -> str:
    ends = sorted({str(row["end"]) for row in rows if row.get("end")})
    return f"{caption} A cross ends a run that is {' or '.join(ends)}." if ends else caption
