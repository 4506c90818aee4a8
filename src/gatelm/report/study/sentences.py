"""Comparisons as plain sentences. "No difference" and "worse" are said as readily as "better"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gatelm.report.load import FINISHED, RunRecord, Study, StudyPart, label
from gatelm.report.metrics import describe
from gatelm.report.numbers import (
    MINUS,
    common_decimals,
    decimals_for,
    fixed,
    interval,
    is_number,
    percent,
)

Outcome = Literal["better", "worse", "higher", "lower", "no difference", "undecided"]


@dataclass(frozen=True)
class Verdict:
    """One comparison in words: `outcome` for a badge, `sentence` for the reader."""

    arm: str
    label: str
    metric: str
    outcome: Outcome
    sentence: str


def verdict(comparison: Mapping[str, Any], places: int | None = None) -> Verdict:
    """The sentence of one entry of results.json's `comparisons`, its numbers to `places` decimals.

    None chooses the decimals from this comparison alone.
    """
    if places is None:
        places = common_places([comparison])
    who = label(str(comparison.get("arm")), comparison.get("axes") or {})
    baseline = str(comparison.get("baseline"))
    metric = describe(str(comparison.get("metric")))
    outcome = _outcome(str(comparison.get("verdict")), comparison, metric.better)
    numbers = _numbers(comparison, who, baseline, places)
    if outcome == "undecided":
        word = str(comparison.get("verdict"))
        sentence = f"{who} against {baseline}: not decided ({word}). {numbers}{_lost(comparison)}"
    elif outcome == "no difference":
        sentence = f"{who}: no difference from {baseline}. {numbers}"
        sentence += _correction(comparison) + _detectable(comparison)
    elif outcome in ("better", "worse"):
        direction = "lower" if _difference(comparison) < 0 else "higher"
        sentence = f"{who} is {outcome} ({direction}) than {baseline}. {numbers}"
    else:
        sentence = f"{who} is {outcome} than {baseline}. {numbers}"
    return Verdict(str(comparison.get("arm")), who, metric.name, outcome, sentence)


def _difference(comparison: Mapping[str, Any]) -> float:
    value = comparison.get("difference")
    return float(value) if is_number(value) and value is not None else float("nan")


def _has_interval(comparison: Mapping[str, Any]) -> bool:
    return is_number(comparison.get("low")) and is_number(comparison.get("high"))


def _outcome(word: str, comparison: Mapping[str, Any], better: str | None) -> Outcome:
    if word == "no difference":
        return "no difference"
    if word in ("higher", "lower") and is_number(comparison.get("difference")):
        if better is None:
            return word  # type: ignore[return-value]
        return "better" if word == better else "worse"
    return "undecided"


def common_places(comparisons: Sequence[Mapping[str, Any]]) -> int:
    """Decimals that suit comparisons shown together: the median of what each would take."""
    differences = (c for c in comparisons if is_number(c.get("difference")))
    return common_decimals(decimals_for(_spread(c), float(c["difference"])) for c in differences)


def _spread(comparison: Mapping[str, Any]) -> float | None:
    if not _has_interval(comparison):
        return None
    return (float(comparison["high"]) - float(comparison["low"])) / 2


def _numbers(comparison: Mapping[str, Any], who: str, baseline: str, places: int) -> str:
    difference = comparison.get("difference")
    count = comparison.get("n")
    seeds = f"{count} paired seed{'' if count == 1 else 's'}"
    if not is_number(difference):
        return f"No finished pair of runs ({seeds})."
    text = fixed(difference, places, sign=True)
    if not _has_interval(comparison):
        return f"Difference ({who} {MINUS} {baseline}) {text}, {seeds}."
    ends = interval(comparison.get("low"), comparison.get("high"), places, sign=True)
    return f"Difference {text}, {percent(comparison.get('confidence'))} interval {ends}, {seeds}."


def _detectable(comparison: Mapping[str, Any]) -> str:
    size = comparison.get("minimum_detectable")
    if not is_number(size) or not size:
        return ""
    text = fixed(size, decimals_for(None, float(size), 2))
    return f" Four in five such studies would have found a true difference of {text}."


def _correction(comparison: Mapping[str, Any]) -> str:
    """Why an interval that excludes zero still reads as no difference."""
    low, high, p = (comparison.get(key) for key in ("low", "high", "p_corrected"))
    if not (_has_interval(comparison) and float(low) * float(high) > 0):  # type: ignore[arg-type]
        return ""
    family = comparison.get("family_size")
    shown = f" (p = {fixed(p, 2)})" if is_number(p) else ""
    return f" The interval excludes zero, but not after correction for {family} comparisons{shown}."


def _lost(comparison: Mapping[str, Any]) -> str:
    counts = [
        f"{count} run{'s' * (count > 1)} of {who} diverged"
        for who, count in (
            (str(comparison.get("arm")), comparison.get("diverged")),
            (str(comparison.get("baseline")), comparison.get("baseline_diverged")),
        )
        if isinstance(count, int) and count
    ]
    return f" {', '.join(counts)}." if counts else ""


def verdicts(part: StudyPart, metrics: Sequence[str]) -> dict[str, list[Verdict]]:
    """Sentences of a part by metric, in the order of the arms."""
    order = {arm: i for i, arm in enumerate(part.arms)}
    rows = sorted(part.comparisons, key=lambda c: order.get(str(c.get("arm")), len(order)))
    by_metric = {m: [c for c in rows if c.get("metric") == m] for m in metrics}
    return {m: [verdict(c, common_places(group)) for c in group] for m, group in by_metric.items()}


def status(study: Study) -> str:
    """How much of the study there is."""
    return f"{_counted(study.parts, 'part')} and {progress(study.runs)}"


def progress(runs: Sequence[RunRecord]) -> str:
    """`9 runs, all finished`, or how many are in which state."""
    states = Counter(run.status for run in runs)
    done = states.pop(FINISHED, 0)
    total = _counted(runs, "run")
    if runs and not states:
        return f"{total}, all finished" if len(runs) > 1 else f"{total}, finished"
    rest = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    return f"{total}: {done} finished" + (f", {rest}" if rest else "")


def unfinished(part: StudyPart) -> list[str]:
    """Which runs did not finish: a sentence for each that got somewhere, one a state for others."""
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


def method(comparisons: Sequence[Mapping[str, Any]]) -> str:
    """How intervals and verdicts were made, and what their number does to them."""
    kept = [c for c in comparisons if _has_interval(c)]
    if not kept:
        return ""
    text = (
        "Differences are arm minus baseline, paired by seed; intervals are Student t intervals of "
        "one comparison each, and error bars show them."
    )
    if any(is_number(c.get("p_corrected")) for c in kept):
        text += (
            " Verdicts use p values corrected by Holm's method over all comparisons of the same "
            "metric in the same part; metrics are not corrected for one another."
        )
    elif len(kept) > 1:
        text += f" Verdicts are not corrected for their number, {len(kept)}."
    return text


def _counted(items: Sequence[object], noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"
