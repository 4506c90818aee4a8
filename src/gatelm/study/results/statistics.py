"""Intervals and verdicts over seeds: Student t, paired differences, Holm's correction.

What a verdict uses: the paired differences of an arm to its baseline over the seeds both have
finished, a two-sided t test of their mean, and Holm's correction over every comparison of the same
metric in the same part (all arms, all points of the axes). The interval printed beside it is the
plain one of that comparison alone, so it can exclude zero where the corrected verdict is
"no difference"; the sentence says so. Metrics are not corrected for one another: a study names its
few primary metrics beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal

import numpy as np
from pydantic import BaseModel
from scipy import optimize, stats

Verdict = Literal["lower", "higher", "no difference", "too few seeds", "diverged"]

ROUNDING = 1e-9
"""Differences smaller than this share of the values compared are rounding and count as zero."""

POWER = 0.8
"""Probability of finding a difference of the minimum detectable size."""


class Interval(BaseModel, frozen=True):
    """Mean of `n` values with a t interval; `sd`, `low` and `high` need two values."""

    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None


class Comparison(BaseModel, frozen=True):
    """An arm against its baseline on one metric, paired by seed.

    `p_value` is of this comparison alone, `p_corrected` after Holm over `family_size` comparisons;
    the verdict uses the latter. `minimum_detectable` is the true difference that `POWER` of such
    studies would have found, given the scatter seen here. `diverged` and `baseline_diverged` count
    runs that diverged; those seeds cannot be paired.
    """

    n: int
    difference: float | None
    low: float | None
    high: float | None
    confidence: float
    p_value: float | None
    p_corrected: float | None
    family_size: int
    minimum_detectable: float | None
    diverged: int
    baseline_diverged: int
    verdict: Verdict


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Compute the mean and t interval of independent values.

    The half width is t(n-1, (1+confidence)/2) * sd / sqrt(n), with sd over n-1.
    """
    n = len(values)
    if n < 2:
        mean = float(values[0]) if n else None
        return Interval(n=n, mean=mean, sd=None, low=None, high=None)
    mean, sd = _mean_sd(values)
    half = float(stats.t.ppf(0.5 + confidence / 2, n - 1)) * sd / math.sqrt(n)
    return Interval(n=n, mean=mean, sd=sd, low=mean - half, high=mean + half)


def paired_difference(
    arm: Mapping[int, float],
    baseline: Mapping[int, float],
    *,
    confidence: float = 0.95,
    diverged: int = 0,
    baseline_diverged: int = 0,
) -> Comparison:
    """Compute arm minus baseline over the seeds (keys) that both have, uncorrected.

    Equal differences in every seed have no scatter to test against: the p value is then 1 when
    they are zero and 0 otherwise, the interval a point. Fewer than two pairs give
    "too few seeds", or "diverged" where divergence is what left too few.
    """
    seeds = sorted(set(arm) & set(baseline))
    differences = [_difference(arm[seed], baseline[seed]) for seed in seeds]
    interval = mean_interval(differences, confidence)
    p_value = _p_value(interval)
    comparison = Comparison(
        n=interval.n,
        difference=interval.mean,
        low=interval.low,
        high=interval.high,
        confidence=confidence,
        p_value=p_value,
        p_corrected=p_value,
        family_size=1,
        minimum_detectable=_minimum_detectable(interval, 1 - confidence),
        diverged=diverged,
        baseline_diverged=baseline_diverged,
        verdict="no difference",
    )
    return _changed(comparison)


def correct(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Correct the p values of one family of comparisons by Holm, and decide the verdicts.

    Comparisons without a p value are no tests and do not count. The minimum detectable difference
    is then that of the strictest step, alpha over the family's size. Holm, Scand. J. Statist. 6
    (1979) 65-70.
    """
    tested = [c.p_value for c in comparisons if c.p_value is not None]
    corrected = iter(holm(tested))
    out = []
    for c in comparisons:
        if c.p_value is not None:
            c = _changed(
                c,
                p_corrected=next(corrected),
                family_size=len(tested),
                minimum_detectable=_rescaled(c, len(tested)),
            )
        out.append(c)
    return out


def holm(p_values: Sequence[float]) -> list[float]:
    """Compute Holm's step-down adjusted p values, in the order given."""
    m = len(p_values)
    adjusted = [0.0] * m
    running = 0.0
    for rank, index in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (m - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


@cache
def detectable_factor(n: int, alpha: float, power: float = POWER) -> float:
    """Return the difference in standard errors that a two-sided t test of n pairs detects.

    Exact up to a grid over the sample's own standard deviation. The usual sum of two t quantiles is
    off by a sixth at the two or three seeds that studies have, and `scipy.stats.nct` gives NaN.
    """
    critical = float(stats.t.ppf(1 - alpha / 2, n - 1))
    tails = (np.arange(4096) + 0.5) / 4096
    bar = critical * np.sqrt(stats.chi2.isf(tails, n - 1) / (n - 1))

    def missing(shift: float) -> float:
        return float(np.mean(stats.norm.cdf(shift - bar) + stats.norm.cdf(-shift - bar))) - power

    return float(optimize.brentq(missing, 0.0, 4 * critical + 10))  # type: ignore[arg-type]


def _mean_sd(values: Sequence[float]) -> tuple[float, float]:
    n = len(values)
    if all(v == values[0] for v in values):
        return float(values[0]), 0.0
    mean = math.fsum(values) / n
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))


def _difference(value: float, base: float) -> float:
    difference = value - base
    return 0.0 if abs(difference) <= ROUNDING * max(abs(value), abs(base)) else difference


def _p_value(interval: Interval) -> float | None:
    if interval.mean is None or interval.sd is None:
        return None
    if interval.sd <= ROUNDING * abs(interval.mean):
        return 1.0 if interval.mean == 0 else 0.0
    t = interval.mean / (interval.sd / math.sqrt(interval.n))
    return float(2 * stats.t.cdf(-abs(t), interval.n - 1))


def _minimum_detectable(interval: Interval, alpha: float) -> float | None:
    if interval.sd is None:
        return None
    return detectable_factor(interval.n, alpha) * interval.sd / math.sqrt(interval.n)


def _rescaled(comparison: Comparison, family_size: int) -> float | None:
    if comparison.minimum_detectable is None:
        return None
    alpha = 1 - comparison.confidence
    ratio = detectable_factor(comparison.n, alpha / family_size)
    return comparison.minimum_detectable * ratio / detectable_factor(comparison.n, alpha)


def _changed(comparison: Comparison, **changes: object) -> Comparison:
    """Copy a comparison with other values and the verdict that they give."""
    changed = comparison.model_copy(update=changes)
    return changed.model_copy(update={"verdict": _verdict(changed)})


def _verdict(comparison: Comparison) -> Verdict:
    p, difference = comparison.p_corrected, comparison.difference
    if p is None or difference is None:
        lost = comparison.diverged + comparison.baseline_diverged
        return "diverged" if lost and comparison.n + lost >= 2 else "too few seeds"
    if p < 1 - comparison.confidence and difference != 0:
        return "lower" if difference < 0 else "higher"
    return "no difference"
