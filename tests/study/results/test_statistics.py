"""Statistics against closed forms, scipy and simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from gatelm.study.results.statistics import (
    correct,
    detectable_factor,
    holm,
    mean_interval,
    paired_difference,
)


def by_seed(values):
    return dict(enumerate(values))


def test_interval_by_hand():
    interval = mean_interval([1.0, 2.0, 3.0], 0.95)
    half = 4.302652729749464 * 1.0 / math.sqrt(3)
    assert (interval.n, interval.mean, interval.sd) == (3, 2.0, 1.0)
    assert interval.low == pytest.approx(2 - half, rel=1e-12)
    assert interval.high == pytest.approx(2 + half, rel=1e-12)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("n", [2, 3, 10])
def test_interval_equals_scipy(n, confidence):
    values = np.random.default_rng(n).normal(size=n)
    interval = mean_interval(list(values), confidence)
    low, high = stats.t.interval(confidence, n - 1, values.mean(), stats.sem(values))
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-9)


def test_interval_of_too_few_values():
    assert mean_interval([]).mean is None
    one = mean_interval([4.0])
    assert (one.n, one.mean, one.sd, one.low) == (1, 4.0, None, None)


def test_interval_of_equal_values_is_a_point():
    interval = mean_interval([0.1] * 3)
    assert (interval.mean, interval.sd, interval.low, interval.high) == (0.1, 0.0, 0.1, 0.1)


def test_paired_difference_equals_scipy():
    rng = np.random.default_rng(3)
    arm, base = rng.normal(1, 1, 6), rng.normal(0, 1, 6)
    comparison = paired_difference(by_seed(arm), by_seed(base), confidence=0.9)
    reference = stats.ttest_rel(arm, base)
    low, high = reference.confidence_interval(0.9)
    assert comparison.p_value == pytest.approx(reference.pvalue, rel=1e-9)
    assert (comparison.low, comparison.high) == pytest.approx((low, high), rel=1e-9)


def test_pairs_are_seeds_that_both_have():
    comparison = paired_difference({0: 1.0, 1: 2.0, 7: 100.0}, {1: 1.0, 0: 0.5, 3: -100.0})
    assert comparison.n == 2
    assert comparison.difference == 0.75


def test_identical_arms_are_no_difference():
    values = by_seed([3.1, 3.2, 2.9])
    comparison = paired_difference(values, dict(values))
    assert (comparison.difference, comparison.low, comparison.high) == (0.0, 0.0, 0.0)
    assert (comparison.p_value, comparison.verdict) == (1.0, "no difference")
    assert comparison.minimum_detectable == 0.0


def test_rounding_is_no_difference():
    comparison = paired_difference(by_seed([1e3 + 1e-10, 1e3 + 2e-10]), by_seed([1e3, 1e3]))
    assert comparison.verdict == "no difference"


@pytest.mark.parametrize(("shift", "verdict"), [(-0.5, "lower"), (0.5, "higher")])
def test_the_same_difference_in_every_seed(shift, verdict):
    base = [1.0, 2.0, 4.0]
    comparison = paired_difference(by_seed([b + shift for b in base]), by_seed(base))
    assert (comparison.verdict, comparison.p_value) == (verdict, 0.0)
    assert comparison.low == comparison.high == comparison.difference == shift


def test_scatter_that_is_rounding_only_does_not_divide_by_it():
    base, arm = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]
    comparison = paired_difference(by_seed(arm), by_seed(base))
    assert (comparison.verdict, comparison.p_value) == ("higher", 0.0)


def test_too_few_seeds_and_divergence_are_told_apart():
    assert paired_difference({0: 1.0}, {0: 2.0}).verdict == "too few seeds"
    assert paired_difference({}, {}).verdict == "too few seeds"
    lost = paired_difference({0: 1.0}, {0: 2.0, 1: 2.0, 2: 2.0}, diverged=2)
    assert (lost.verdict, lost.diverged) == ("diverged", 2)


def test_divergence_is_counted_beside_a_verdict():
    comparison = paired_difference(
        {0: 1.0, 1: 1.1}, {0: 2.0, 1: 2.1, 2: 2.0}, diverged=1, baseline_diverged=0
    )
    assert (comparison.n, comparison.diverged, comparison.verdict) == (2, 1, "lower")


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_correction_changes_verdicts_but_not_intervals():
    weak = paired_difference(by_seed([1.0, 1.7, 1.1]), by_seed([0.0, 0.0, 0.2]))
    assert weak.verdict == "higher"
    null = paired_difference(by_seed([1.0, -1.0, 0.5]), by_seed([0.0, 0.0, 0.0]))
    untested = paired_difference({0: 1.0}, {0: 1.0})
    corrected = correct([weak, null, null, null, untested])
    assert corrected[0].p_corrected == pytest.approx(4 * weak.p_value)
    assert corrected[0].family_size == 4
    assert corrected[0].verdict == "no difference"
    assert (corrected[0].low, corrected[0].high) == (weak.low, weak.high)
    assert corrected[4].verdict == "too few seeds"
    assert corrected[1].minimum_detectable > null.minimum_detectable


@pytest.mark.parametrize(("n", "alpha"), [(2, 0.05), (3, 0.05), (3, 0.01), (8, 0.05)])
def test_a_difference_of_the_detectable_size_is_found_so_often(n, alpha):
    rng = np.random.default_rng(0)
    shift = detectable_factor(n, alpha, 0.8) / math.sqrt(n)
    t = stats.ttest_1samp(rng.normal(shift, 1, (40_000, n)), 0, axis=1)
    assert np.mean(t.pvalue < alpha) == pytest.approx(0.8, abs=0.01)


def simulate(shift, arms, trials=1500, seeds=3):
    """Share of trials in which some arm of `arms`, `shift` above the baseline, gets a winner."""
    rng = np.random.default_rng(1)
    found = 0
    for _ in range(trials):
        base = by_seed(rng.normal(size=seeds))
        family = [
            paired_difference(by_seed(rng.normal(shift, 1, seeds)), base) for _ in range(arms)
        ]
        found += any(c.verdict != "no difference" for c in correct(family))
    return found / trials


def test_two_equal_arms_have_a_winner_in_five_of_a_hundred_studies():
    assert simulate(0.0, arms=1) == pytest.approx(0.05, abs=0.02)


def test_five_equal_arms_have_a_winner_no_more_often():
    assert simulate(0.0, arms=5) <= 0.06


def test_a_planted_effect_is_found():
    assert simulate(30.0, arms=1, trials=100) == 1.0
