"""The tests of claims: each turns one point of a study into a verdict and the figure behind it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gatelm.study.claims.data import Point
from gatelm.study.claims.registry import (
    BestTest,
    Bounds,
    CompareTest,
    DegradationTest,
    OrderTest,
    RatioTest,
    StepTest,
    ValueTest,
)
from gatelm.study.results.numbers import bracketed, decimals, mean
from gatelm.study.results.sentence import interval_text
from gatelm.study.results.statistics import POWER, Comparison, Interval, correct, mean_interval

Verdict = Literal["reproduced", "not reproduced", "not testable at this scale", "no data"]

MIN_SEEDS = 3
"""Least number of seeds with which a claim can be decided."""


@dataclass(frozen=True)
class Evidence:
    """Evidence of one point of a study on a claim."""

    where: str
    verdict: Verdict
    figure: str


def compare(test: CompareTest, arms: Sequence[str], point: Point, metric: str) -> Evidence:
    """Decide as the study's own comparison does, which is corrected for its other arms."""
    arm, baseline = arms
    found = point.study_difference(arm, baseline, metric) or point.difference(arm, baseline, metric)
    text = f"{arm} minus {baseline}: {_difference(found)}"
    return _evidence(point, found.n, found.verdict == test.direction, text)


def order(test: OrderTest, arms: Sequence[str], point: Point, metric: str) -> Evidence:
    """Test every step of the printed order, corrected for their number."""
    pairs = list(itertools.pairwise(arms))
    steps = correct([point.difference(low, high, metric) for low, high in pairs])
    held = [step.verdict == "lower" for step in steps]
    turned = [pair for pair, step in zip(pairs, steps, strict=True) if step.verdict == "higher"]
    means = {arm: point.mean(arm, metric).mean for arm in arms}
    known = sorted((value, arm) for arm, value in means.items() if value is not None)
    text = f"found, lowest first: {', '.join(f'{arm} {_number(value)}' for value, arm in known)}; "
    text += f"{sum(held)} of {len(held)} steps of the printed order are told apart in its direction"
    if turned:
        text += f", {len(turned)} the other way"
    return _evidence(point, min(step.n for step in steps), all(held), text)


def best(test: BestTest, arms: Sequence[str], point: Point, metric: str) -> Evidence:
    """Test one arm against each other arm, corrected for their number."""
    arm, *others = arms
    found = correct([point.difference(arm, other, metric) for other in others])
    held = [c.verdict == test.direction for c in found]
    pairs = zip(others, found, strict=True)
    text = "; ".join(f"minus {other}: {_difference(c)}" for other, c in pairs)
    count = f"{test.direction} than {sum(held)} of {len(held)}"
    return _evidence(point, min(c.n for c in found), all(held), f"{arm} {count}; {text}")


def value(test: ValueTest, arms: Sequence[str], point: Point, metric: str) -> Evidence:
    """Test the interval of the arm's mean."""
    (arm,) = arms
    found = point.mean(arm, metric)
    text = f"{arm}: {_interval(found)}{_against(found, test)}"
    return _evidence(point, found.n, within(found, test), text)


def ratio(test: RatioTest, arms: Sequence[str], point: Point, metric: str) -> Evidence:
    """Test the interval of the mean over seeds of arm / baseline."""
    arm, baseline = arms
    top, bottom = point.values(arm, metric), point.values(baseline, metric)
    paired = [top[seed] / bottom[seed] for seed in top if bottom.get(seed)]
    found = mean_interval(paired, point.confidence)
    means = [_number(point.mean(name, metric).mean) for name in (arm, baseline)]
    text = (
        f"{arm} {means[0]}, {baseline} {means[1]}; ratio {_interval(found)}{_against(found, test)}"
    )
    return _evidence(point, found.n, within(found, test), text)


def degradation(
    test: DegradationTest, arms: Sequence[str], start: Point, end: Point, metric: str
) -> Evidence:
    """Test the difference between the arms in the change along the axis, paired by seed."""
    arm, baseline = arms
    added = []
    for name in (arm, baseline):
        before, after = start.values(name, metric), end.values(name, metric)
        added.append({seed: after[seed] - before[seed] for seed in after if seed in before})
    shared = sorted(set(added[0]) & set(added[1]))
    found = mean_interval([added[0][s] - added[1][s] for s in shared], end.confidence)
    means = [_number(mean(values[s] for s in shared)) for values in added]
    text = (
        f"{test.axis} from {test.start} to {test.end} adds {means[0]} with {arm}, {means[1]} with "
        f"{baseline}; difference {_interval(found)}"
    )
    return _evidence(end, found.n, found.high is not None and found.high < 0, text)


def step(test: StepTest, arms: Sequence[str], start: Point, end: Point, metric: str) -> Evidence:
    """Test the change of one arm along the axis, paired by seed."""
    (arm,) = arms
    before, after = start.values(arm, metric), end.values(arm, metric)
    found = mean_interval([after[s] - before[s] for s in after if s in before], end.confidence)
    added = f"{_interval(found)} with {arm}{_against(found, test)}"
    text = f"{test.axis} from {test.start} to {test.end} adds {added}"
    return _evidence(end, found.n, within(found, test), text)


def survival(arms: Sequence[str], points: Sequence[Point]) -> Evidence:
    """Test for points where one arm lost every run and the other none."""
    arm, baseline = arms

    def alone(lost: str, kept: str) -> list[Point]:
        return [
            p
            for p in points
            if p.diverged(lost) == p.planned(lost) >= MIN_SEEDS and not p.diverged(kept)
        ]

    for_it, against = alone(baseline, arm), alone(arm, baseline)
    counts = [
        f"{name} {sum(p.diverged(name) for p in points)} of {sum(p.planned(name) for p in points)}"
        for name in (arm, baseline)
    ]
    text = f"diverged: {', '.join(counts)}"
    for what, found in (("only", for_it), ("the other way round at", against)):
        if found:
            text += f"; {what} {', '.join(p.where for p in found)}"
    done = min(_done(p, name) for p in points for name in arms)
    part = points[0].part
    if done < MIN_SEEDS:
        return Evidence(part, "no data", f"{text}; {_few(done)}")
    held = bool(for_it) and not against
    return Evidence(part, "reproduced" if held else "not reproduced", text)


ONE_POINT: dict[str, Callable[[Any, Sequence[str], Point, str], Evidence]] = {
    "compare": compare,
    "order": order,
    "best": best,
    "value": value,
    "ratio": ratio,
}
"""Tests that look at one point of the axes, by kind."""


def within(found: Interval, bounds: Bounds) -> bool:
    """Whether the whole interval lies within the bounds."""
    if found.low is None or found.high is None:
        return False
    above = bounds.at_least is None or found.low >= bounds.at_least
    return above and (bounds.at_most is None or found.high <= bounds.at_most)


def _against(found: Interval, bounds: Bounds) -> str:
    """Say what was asked, and whether the interval lies outside or only reaches beyond it."""
    if found.low is None or found.high is None:
        return ""
    low = -math.inf if bounds.at_least is None else bounds.at_least
    high = math.inf if bounds.at_most is None else bounds.at_most
    asked = f"asked: {bounds_text(bounds)}"
    if within(found, bounds):
        return f" ({asked})"
    outside = found.high < low or found.low > high
    return f" ({asked}; {'all of it lies outside' if outside else 'it reaches beyond'})"


def bounds_text(bounds: Bounds) -> str:
    """Write bounds as `at least 0.2 and at most 1`."""
    ends = [("at least", bounds.at_least), ("at most", bounds.at_most)]
    return " and ".join(f"{word} {number:g}" for word, number in ends if number is not None)


def _evidence(point: Point, n: int, held: bool, text: str) -> Evidence:
    if n < MIN_SEEDS:
        return Evidence(point.where, "no data", f"{text}; {_few(n)}")
    return Evidence(point.where, "reproduced" if held else "not reproduced", text)


def _few(n: int) -> str:
    return f"{n} seed{'' if n == 1 else 's'}, and a claim takes {MIN_SEEDS}"


def _done(point: Point, arm: str) -> int:
    return sum(run.status in ("finished", "diverged") for run in point.runs.get(arm, {}).values())


def _difference(c: Comparison) -> str:
    """Write difference, interval and verdict; for a null also the detectable difference."""
    text = f"{interval_text(c)}: {c.verdict}"
    alone = c.low is not None and c.high is not None and c.low * c.high > 0
    if c.verdict == "no difference" and alone and c.p_corrected is not None:
        text += f", corrected for {c.family_size} comparisons (p {c.p_corrected:.2g})"
    if c.verdict == "no difference" and c.minimum_detectable:
        size = c.minimum_detectable
        text += f" (smallest found {POWER:.0%} of the time: {size:.{decimals(size)}f})"
    return text


def _interval(found: Interval) -> str:
    if found.mean is None:
        return "no value"
    if found.low is None or found.high is None:
        return _number(found.mean)
    return " ".join(bracketed(found.mean, found.low, found.high))


def _number(number: float | None) -> str:
    return "-" if number is None else f"{number:.4g}"
