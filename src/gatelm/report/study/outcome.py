"""Sections on the outcome: verdicts in sentences, the table of arms, charts of seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from gatelm.report.charts import intervals
from gatelm.report.charts.theme import Palette
from gatelm.report.load import FINISHED, RunRecord, StudyPart
from gatelm.report.metrics import Described, describe
from gatelm.report.page import Column, Figure, Html, Page, badge, join, swatch, swatched
from gatelm.report.study.sentences import Verdict, progress, unfinished, verdict, verdicts
from gatelm.study.planning.derived import uniform_name
from gatelm.study.results.numbers import (
    MISSING,
    common_decimals,
    count,
    decimals_for,
    fixed,
    half_width,
    interval,
    is_number,
    mean,
    percent,
    rounded,
    short,
)
from gatelm.study.results.schema import SummaryEntry

MOST_SENTENCES = 12
MOST_SETTINGS = 12


def add_verdict(page: Page, part: StudyPart, palette: Palette) -> None:
    """Add the question, the claims it tests, and a sentence for each primary comparison."""
    page.section(part.title, level=3)
    if part.spec.question:
        page.text(join(Html("<strong>Question.</strong> "), part.spec.question))
    for claim in part.spec.claims:
        page.note(join(Html("<strong>Published claim.</strong> "), claim), "claim")
    if part.spec.note:
        page.note(part.spec.note)
    missing = unfinished(part)
    if missing:
        page.note(f"This part is not complete: {progress(part.runs)}.", "warning")
        page.items(missing)
    said = verdicts(part, part.primary_metrics)
    if not any(said.values()):
        page.text("There is no comparison to report in this part.")
    for metric, sentences in said.items():
        _add_sentences(page, describe(metric), sentences, palette)


def _add_sentences(
    page: Page, metric: Described, sentences: Sequence[Verdict], palette: Palette
) -> None:
    if not sentences:
        return
    direction = f", {metric.better} is better" if metric.better else ""
    page.text(join(Html("<strong>"), metric.label, Html("</strong>"), direction))
    if len(sentences) <= MOST_SENTENCES:
        rows = [
            join(badge(v.outcome, v.outcome), swatched(palette.of(v.arm), v.sentence))
            for v in sentences
        ]
        page.items(rows, "verdicts")
        return
    arms: dict[str, Counter[str]] = {}
    for v in sentences:
        arms.setdefault(v.arm, Counter())[v.outcome] += 1
    page.items(
        f"{arm}: "
        + ", ".join(f"{outcome} in {n}" for outcome, n in states.items())
        + f" of {sum(states.values())} settings."
        for arm, states in arms.items()
    )
    page.details("Each setting in a sentence", *(v.sentence for v in sentences), code=False)


def add_arms(page: Page, part: StudyPart, palette: Palette) -> None:
    """Add a row per arm: mean and interval of each metric, parameters."""
    groups = part.groups()
    if not groups:
        page.note("No run of this part has been recorded yet.", "warning")
        return
    metrics = [describe(name) for name in part.metrics]
    table = {(s.label, s.metric): s for s in part.summaries}
    columns = [
        Column("Arm"),
        Column("Seeds", "right", "finished runs of those planned"),
        *(Column(m.axis, "right", m.definition) for m in metrics),
        Column("Parameters", "right", "all parameters, and below how many of them are in gates"),
    ]
    cells = [
        _column([_cell(table.get((name, m.name)), runs, m.name) for name, runs in groups.items()])
        for m in metrics
    ]
    rows = [
        [
            swatch(palette.of(runs[0].arm), name),
            f"{sum(run.status == FINISHED for run in runs)} of {len(runs)}",
            *(column[i] for column in cells),
            join(
                _same(run.parameters for run in runs),
                Html("<small>"),
                _same(run.gate_parameters for run in runs),
                Html(" in gates</small>"),
            ),
        ]
        for i, (name, runs) in enumerate(groups.items())
    ]
    spread = f"{percent(part.spec.confidence)} interval below"
    page.table(columns, rows, f"Means over finished seeds, {spread}.")


Cell = tuple[float | None, float | None, float | None]
"""A mean and the ends of its interval, if there are any."""


def _column(cells: Sequence[Cell]) -> list[Html]:
    """Format the cells of one metric with the same decimals, for reading down the column."""
    places = common_decimals(
        decimals_for(half_width(low, high), middle, 4)
        for middle, low, high in cells
        if middle is not None
    )
    out = []
    for middle, low, high in cells:
        small = "" if low is None else f"<small>{interval(low, high, places)}</small>"
        out.append(Html(f"{fixed(middle, places)}{small}"))
    return out


def _cell(summary: SummaryEntry | None, runs: Sequence[RunRecord], metric: str) -> Cell:
    """Return a cell from the study's summary; without one, the mean of finished runs."""
    if summary is not None and summary.mean is not None:
        return summary.mean, summary.low, summary.high
    return mean(run.metrics.get(metric) for run in runs if run.status == FINISHED), None, None


def _same(counts: Iterable[int | None]) -> str:
    """Format the count that all runs share, or the different counts."""
    known = {number for number in counts if number is not None}
    return " / ".join(count(number) for number in sorted(known)) or MISSING


def outcome_figures(part: StudyPart, palette: Palette) -> list[Figure]:
    """Draw for each primary metric and setting every seed with the mean, and the differences."""
    out = []
    for name in part.primary_metrics:
        values = [run.metrics.get(name) for run in part.finished()]
        known = [float(v) for v in values if is_number(v)]
        places = part.settings()
        for place in places[:MOST_SETTINGS] if known else ():
            shared = (min(known), max(known)) if len(places) > 1 else None
            out += _seeds_figures(part, name, place, palette, shared)
            out += _difference_figures(part, name, place, palette)
    return out


def _seeds_figures(
    part: StudyPart, name: str, place: str, palette: Palette, domain: tuple[float, float] | None
) -> list[Figure]:
    metric = describe(name)
    seeds = [
        {"arm": r.arm, "label": r.arm, "seed": r.seed, "value": rounded(r.metrics[name], 6)}
        for runs in part.groups().values()
        for r in runs
        if r.setting == place and r.status == FINISHED and is_number(r.metrics.get(name))
    ]
    if not seeds:
        return []
    means = [
        {
            "arm": s.arm,
            "label": s.arm,
            "n": s.n,
            **{key: rounded(getattr(s, key), 6) for key in ("mean", "low", "high")},
        }
        for s in part.summaries_of(name)
        if s.setting == place
    ]
    uniform = _uniform(part, name)
    chart = intervals.seeds_and_means(
        seeds,
        means,
        palette,
        title=f"{metric.label}: {place or 'seeds and mean'}",
        x_title=metric.axis,
        x_domain=domain,
        reference=uniform,
    )
    caption = "Dots: seeds; bar: mean and its interval."
    if uniform is not None:
        caption += f" Dashed: uniform attention, {short(uniform)}."
    return [Figure("-".join(filter(None, (part.name, name, place))), chart, caption)]


def _difference_figures(part: StudyPart, name: str, place: str, palette: Palette) -> list[Figure]:
    metric = describe(name)
    order = {arm: i for i, arm in enumerate(part.arms)}
    rows = [
        {
            "arm": c.arm,
            "label": c.arm,
            "n": c.n,
            "outcome": verdict(c).outcome,
            **{key: rounded(getattr(c, key), 6) for key in ("difference", "low", "high")},
        }
        for c in part.comparisons_of(name)
        if c.setting == place and c.difference is not None
    ]
    if not rows:
        return []
    unit = f" ({metric.unit})" if metric.unit else ""
    good = f"; {metric.better} is better" if metric.better else ""
    chart = intervals.differences(
        sorted(rows, key=lambda row: order.get(row["arm"], len(order))),
        palette,
        title=f"Difference from {part.baseline}" + (f": {place}" if place else ""),
        x_title=f"difference in {metric.phrase}{unit}{good}",
    )
    return [Figure("-".join(filter(None, (part.name, name, "difference", place))), chart)]


def _uniform(part: StudyPart, metric: str) -> float | None:
    """Return the uniform-attention value of a first-token share, of the same queries."""
    name = uniform_name(metric)
    values = [run.metrics.get(name) for run in part.finished()] if name else ()
    return next((float(v) for v in values if is_number(v)), None)
