from typing import Any

import pytest

from gatelm.report.study.sentences import method, progress, verdict
from gatelm.study.results.numbers import MINUS
from gatelm.study.results.schema import ComparisonEntry
from gatelm.study.results.statistics import paired_difference


def comparison(**changes: Any) -> ComparisonEntry:
    base = {
        "part": "text", "arm": "sdpa-head", "axes": {}, "baseline": "none", "metric": "val_loss",
        "n": 3, "difference": -0.0315, "low": -0.0359, "high": -0.0271, "confidence": 0.95,
        "p_value": 0.001, "p_corrected": 0.002, "family_size": 2, "verdict": "lower",
        "minimum_detectable": 0.012, "diverged": 0, "baseline_diverged": 0,
    }  # fmt: skip
    return ComparisonEntry(**{**base, **changes})


def test_lower_loss_is_better() -> None:
    said = verdict(comparison())
    assert said.outcome == "better"
    assert said.sentence == (
        f"sdpa-head is better (lower) than none. Difference {MINUS}0.0315, 95 % interval "
        f"{MINUS}0.0359 to {MINUS}0.0271, 3 paired seeds."
    )


def test_higher_loss_is_worse_and_higher_accuracy_is_better() -> None:
    up = {"difference": 0.03, "low": 0.02, "high": 0.04, "verdict": "higher"}
    assert verdict(comparison(**up)).outcome == "worse"
    assert "is worse (higher) than none" in verdict(comparison(**up)).sentence
    assert verdict(comparison(**up, metric="accuracy_trigger")).outcome == "better"


def test_a_metric_without_a_good_direction_is_only_higher_or_lower() -> None:
    said = verdict(comparison(metric="first_token_share"))
    assert said.outcome == "lower"
    assert "better" not in said.sentence


def test_no_difference_says_what_would_have_been_found() -> None:
    said = verdict(comparison(difference=0.001, low=-0.009, high=0.011, verdict="no difference"))
    assert said.outcome == "no difference"
    assert said.sentence.startswith("sdpa-head: no difference from none.")
    assert "would have found a true difference of 0.012" in said.sentence
    assert "excludes zero" not in said.sentence


def test_an_interval_that_excludes_zero_but_not_after_correction_is_explained() -> None:
    said = verdict(comparison(verdict="no difference", p_corrected=0.08, family_size=5))
    assert said.outcome == "no difference"
    assert "not after correction for 5 comparisons (p = 0.08)" in said.sentence


@pytest.mark.parametrize("word", ["too few seeds", "diverged"])
def test_what_cannot_be_decided_is_not_decided(word: str) -> None:
    said = verdict(
        comparison(n=1, low=None, high=None, minimum_detectable=None, verdict=word, diverged=2)
    )
    assert said.outcome == "undecided"
    assert f"not decided ({word})" in said.sentence
    assert "1 paired seed." in said.sentence
    assert "2 runs of sdpa-head diverged" in said.sentence


def test_no_pair_at_all() -> None:
    said = verdict(comparison(n=0, difference=None, low=None, high=None, verdict="too few seeds"))
    assert "No finished pair of runs" in said.sentence


def test_two_identical_arms_read_as_no_difference() -> None:
    runs = {0: 3.41, 1: 3.42, 2: 3.40}
    pair = vars(paired_difference(runs, runs))
    said = verdict(comparison(**pair))
    assert said.outcome == "no difference"
    assert "Difference 0.00, 95 % interval 0.00 to 0.00" in said.sentence


def test_method_names_the_correction_only_where_there_is_one() -> None:
    assert "Holm" in method([comparison(), comparison()])
    plain = [comparison(p_corrected=None), comparison(p_corrected=None)]
    assert "not corrected" in method(plain)
    assert method([comparison(low=None)]) == ""


def test_progress_counts_states() -> None:
    assert progress([]) == "0 runs: 0 finished"
