"""What came out: verdicts in sentences, the table of arms, seeds and differences as charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gatelm.analysis.metrics.registry import split_mark
from gatelm.report.charts import intervals
from gatelm.report.charts.theme import Palette
from gatelm.report.load import FINISHED, RunRecord, StudyPart, label, setting
from gatelm.report.metrics import Described, describe
from gatelm.report.numbers import (
    common_decimals,
    count,
    decimals_for,
    fixed,
    interval,
    is_number,
    percent,
    rounded,
    short,
)
from gatelm.report.page import Column, Figure, Html, Page, badge, join, swatch, swatched
from gatelm.report.study.sentences import Verdict, progress, unfinished, verdict, verdicts

MOST_SENTENCES = 12
MOST_SETTINGS = 12


def add_verdict(page: Page, part: StudyPart, palette: Palette) -> None:
    """The question, the claims it speaks to, and a sentence for each primary comparison."""
    page.section(part.title, level=3)
    question = str(part.spec.get("question") or "")
    if question:
        page.text(join(Html("<strong>Question.</strong> "), question))
    for claim in part.spec.get("claims") or ():
        page.note(join(Html("<strong>Published claim.</strong> "), _claim(claim)), "claim")
    if part.spec.get("note"):
        page.note(str(part.spec["note"]))
    missing = unfinished(part)
    if missing:
        page.note(f"This part is not complete: {progress(part.runs)}.", "warning")
        page.items(missing)
    said = verdicts(part, part.primary_metrics)
    if not any(said.values()):
        page.text("There is no comparison to report in this part.")
    for metric, sentences in said.items():
        _add_sentences(page, describe(metric), sentences, palette)


def _claim(claim: Any) -> str:
    if isinstance(claim, Mapping):
        return " ".join(str(value) for value in claim.values())
    return str(claim)


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
    """A row an arm: mean and interval of each metric, parameters."""
    groups = part.groups()
    if not groups:
        page.note("No run of this part has been recorded yet.", "warning")
        return
    metrics = [describe(name) for name in part.metrics]
    table = {
        (label(str(s.get("arm")), s.get("axes") or {}), s.get("metric")): s for s in part.summaries
    }
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
                _same(runs, "parameters"),
                Html("<small>"),
                _same(runs, "gate_parameters"),
                Html(" in gates</small>"),
            ),
        ]
        for i, (name, runs) in enumerate(groups.items())
    ]
    confidence = part.spec.get("confidence")
    spread = f", {percent(confidence)} interval below" if is_number(confidence) else ""
    page.table(columns, rows, f"Means over finished seeds{spread}.")


@dataclass(frozen=True)
class _Cell:
    """A mean, with an interval where there is one."""

    mean: float | None
    low: float | None
    high: float | None

    def places(self) -> int | None:
        if self.mean is None:
            return None
        spread = None if self.low is None or self.high is None else (self.high - self.low) / 2
        return decimals_for(spread, self.mean, 4)

    def html(self, places: int) -> Html:
        below = interval(self.low, self.high, places)
        small = f"<small>{below}</small>" if self.low is not None else ""
        return Html(f"{fixed(self.mean, places)}{small}")


def _column(cells: Sequence[_Cell]) -> list[Html]:
    """Cells of one metric with the same decimals, so that they can be read down the column."""
    places = common_decimals(cell.places() for cell in cells)
    return [cell.html(places) for cell in cells]


def _cell(summary: Mapping[str, Any] | None, runs: Sequence[RunRecord], metric: str) -> _Cell:
    """From the study's summary, or without one the bare mean of the finished runs."""
    if summary is not None and is_number(summary.get("mean")):
        low, high = summary.get("low"), summary.get("high")
        if is_number(low) and is_number(high):
            return _Cell(summary["mean"], low, high)
        return _Cell(summary["mean"], None, None)
    done = [run.metrics.get(metric) for run in runs if run.status == FINISHED]
    values = [float(value) for value in done if is_number(value)]  # type: ignore[arg-type]
    return _Cell(sum(values) / len(values) if values else None, None, None)


def _same(runs: Sequence[RunRecord], key: str) -> str:
    values = {run.record.get(key) for run in runs if is_number(run.record.get(key))}
    return " / ".join(count(value) for value in sorted(values)) or fixed(None, 0)  # type: ignore[type-var]


def outcome_figures(part: StudyPart, palette: Palette) -> list[Figure]:
    """For each primary metric and setting: every seed with the mean, and the differences."""
    out = []
    for name in part.primary_metrics:
        values = [run.metrics.get(name) for run in part.finished()]
        known = [float(v) for v in values if is_number(v)]  # type: ignore[arg-type]
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
        if setting(r.axes) == place and r.status == FINISHED and is_number(r.metrics.get(name))
    ]
    if not seeds:
        return []
    means = [
        {
            "arm": s["arm"],
            "label": s["arm"],
            "n": s.get("n"),
            **{key: rounded(s.get(key), 6) for key in ("mean", "low", "high")},
        }
        for s in part.summaries
        if s.get("metric") == name
        and setting(s.get("axes") or {}) == place
        and is_number(s.get("mean"))
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
            "arm": c["arm"],
            "label": c["arm"],
            "n": c.get("n"),
            "outcome": verdict(c).outcome,
            **{key: rounded(c.get(key), 6) for key in ("difference", "low", "high")},
        }
        for c in part.comparisons
        if c.get("metric") == name
        and setting(c.get("axes") or {}) == place
        and is_number(c.get("difference"))
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
    """The uniform-attention value beside a first-token share, of the same queries."""
    stem, mark = split_mark(metric)
    if stem != "first_token_share":
        return None
    name = "first_token_share_uniform" + (f"_{mark}" if mark else "")
    values = [run.metrics.get(name) for run in part.finished()]
    return next((float(v) for v in values if is_number(v)), None)  # type: ignore[arg-type]
