"""Comparisons as plain sentences. "No difference" and "worse" are said as readily as "better"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gatelm.report.load import FINISHED, RunRecord, Study, StudyPart
from gatelm.report.metrics import describe
from gatelm.study.results.numbers import (
    MINUS,
    common_decimals,
    decimals_for,
    fixed,
    half_width,
    interval,
    is_number,
    percent,
)
from gatelm.study.results.schema import ComparisonEntry

Outcome = Literal["better", "worse", "higher", "lower", "no difference", "undecided"]


@dataclass(frozen=True)
class Verdict:
    """One comparison in words: `outcome` for a badge, `sentence` for the reader."""

    arm: str
    label: str
    metric: str
    outcome: Outcome
    sentence: str


def verdict(comparison: ComparisonEntry, places: int | None = None) -> Verdict:
    """Write the sentence of one comparison, with numbers to `places` decimals.

    None chooses the decimals from this comparison alone.
    """
    if places is None:
        places = common_places([comparison])
    c, who = comparison, comparison.label
    outcome = _outcome(c, describe(c.metric).better)
    numbers = _numbers(c, places)
    if outcome == "undecided":
        sentence = f"{who} against {c.baseline}: not decided ({c.verdict}). {numbers}{_lost(c)}"
    elif outcome == "no difference":
        sentence = f"{who}: no difference from {c.baseline}. {numbers}"
        sentence += _correction(c) + _detectable(c)
    elif outcome in ("better", "worse"):
        sentence = f"{who} is {outcome} ({c.verdict}) than {c.baseline}. {numbers}"
    else:
        sentence = f"{who} is {outcome} than {c.baseline}. {numbers}"
    return Verdict(c.arm, who, c.metric, outcome, sentence)


def _outcome(comparison: ComparisonEntry, better: str | None) -> Outcome:
    word = comparison.verdict
    if word == "no difference":
        return "no difference"
    if word == "too few seeds" or word == "diverged":
        return "undecided"
    if better is None:
        return word
    return "better" if word == better else "worse"


def common_places(comparisons: Sequence[ComparisonEntry]) -> int:
    """Return decimals for comparisons shown together: the median of each one's own."""
    return common_decimals(
        decimals_for(half_width(c.low, c.high), c.difference)
        for c in comparisons
        if c.difference is not None
    )


def _numbers(c: ComparisonEntry, places: int) -> str:
    seeds = f"{c.n} paired seed{'' if c.n == 1 else 's'}"
    if c.difference is None:
        return f"No finished pair of runs ({seeds})."
    text = fixed(c.difference, places, sign=True)
    if c.low is None:
        return f"Difference ({c.label} {MINUS} {c.baseline}) {text}, {seeds}."
    ends = interval(c.low, c.high, places, sign=True)
    return f"Difference {text}, {percent(c.confidence)} interval {ends}, {seeds}."


def _detectable(comparison: ComparisonEntry) -> str:
    size = comparison.minimum_detectable
    if not size:
        return ""
    text = fixed(size, decimals_for(None, size, 2))
    return f" Four in five such studies would have found a true difference of {text}."


def _correction(c: ComparisonEntry) -> str:
    """Explain why an interval that excludes zero still means no difference."""
    if c.low is None or c.high is None or c.low * c.high <= 0:
        return ""
    shown = "" if c.p_corrected is None else f" (p = {fixed(c.p_corrected, 2)})"
    family = f"{c.family_size} comparisons{shown}"
    return f" The interval excludes zero, but not after correction for {family}."


def _lost(c: ComparisonEntry) -> str:
    counts = [
        f"{count} run{'s' * (count > 1)} of {who} diverged"
        for who, count in ((c.arm, c.diverged), (c.baseline, c.baseline_diverged))
        if count
    ]
    return f" {', '.join(counts)}." if counts else ""


def verdicts(part: StudyPart, metrics: Sequence[str]) -> dict[str, list[Verdict]]:
    """Write the sentences of a part by metric, in the order of the arms."""
    order = {arm: i for i, arm in enumerate(part.arms)}
    out = {}
    for metric in metrics:
        group = part.comparisons_of(metric)
        group.sort(key=lambda c: order.get(c.arm, len(order)))
        out[metric] = [verdict(c, common_places(group)) for c in group]
    return out


def status(study: Study) -> str:
    """Say how much of the study is done."""
    return f"{_counted(study.parts, 'part')} and {progress(study.runs)}"


def progress(runs: Sequence[RunRecord]) -> str:
    """Say `9 runs, all finished`, or the number of runs in each state."""
    states = Counter(run.status for run in runs)
    done = states.pop(FINISHED, 0)
    total = _counted(runs, "run")
    if runs and not states:
        return f"{total}, all finished" if len(runs) > 1 else f"{total}, finished"
    rest = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    return f"{total}: {done} finished" + (f", {rest}" if rest else "")


def unfinished(part: StudyPart) -> list[str]:
    """Say which runs did not finish: a sentence for each with results, one per state for others."""
    out: list[str] = []
    rest: dict[str, dict[str, list[str]]] = {}
    for run in part.runs:
        steps = [line["step"] for line in run.train if is_number(line.get("step"))]
        if run.status == FINISHED:
            continue
        if steps:
            out.append(f"{run.label}, seed {run.seed}: {run.status} after step {max(steps):,}.")
        else:
            rest.setdefault(run.status, {}).setdefault(run.label, []).append(str(run.seed))
    for state, arms in rest.items():
        named = [f"{arm} (seed{'s' * (len(s) > 1)} {', '.join(s)})" for arm, s in arms.items()]
        out.append(f"{state.capitalize()}: {', '.join(named)}.")
    return out


def method(comparisons: Sequence[ComparisonEntry]) -> str:
    """Say how intervals and verdicts were made, and how their number affects them."""
    kept = [c for c in comparisons if c.low is not None]
    if not kept:
        return ""
    text = (
        "Differences are arm minus baseline, paired by seed; intervals are Student t intervals of "
        "one comparison each, and error bars show them."
    )
    if any(c.p_corrected is not None for c in kept):
        text += (
            " Verdicts use p values corrected by Holm's method over all comparisons of the same "
            "metric in the same part; metrics are not corrected for one another."
        )
    elif len(kept) > 1:
        text += f" Verdicts are not corrected for their number, {len(kept)}."
    return text


def _counted(items: Sequence[object], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"
