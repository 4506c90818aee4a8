"""The words of a comparison."""

from __future__ import annotations

from gatelm.study.results.sentence import decimals, sentence
from gatelm.study.results.statistics import correct, paired_difference


def words(arm, base, **kwargs):
    comparison = paired_difference(dict(enumerate(arm)), dict(enumerate(base)), **kwargs)
    return sentence("head", "none", {}, "val_loss", comparison)


def test_a_difference():
    text = words([2.97, 2.96, 2.98], [3.0, 3.0, 3.0])
    assert text == "head against none, val_loss: -0.030 [-0.055, -0.005] (95 %, 3 seeds): lower"


def test_a_null_says_what_it_could_have_missed():
    text = words([2.9, 3.1], [3.0, 3.0])
    assert text.startswith("head against none, val_loss: +0.000 [-1.271, +1.271] (95 %, 2 seeds)")
    assert ": no difference; smallest difference found 80% of the time: 1.6" in text


def test_identical_arms():
    assert words([1.0, 2.0], [1.0, 2.0]).endswith("no difference; equal in every seed")


def test_divergence_and_missing_pairs():
    text = words([], [3.0, 3.0], diverged=2)
    assert "no pair of finished runs (0 seeds)" in text
    assert text.endswith("diverged runs: head 2")


def test_a_correction_that_decides_says_so():
    family = [
        paired_difference({0: 1.0, 1: 1.7, 2: 1.1}, {0: 0.0, 1: 0.0, 2: 0.2}),
        *[paired_difference({0: 1.0, 1: -1.0}, {0: 0.0, 1: 0.0})] * 4,
    ]
    text = sentence("a", "b", {"optim.lr": 0.01}, "val_loss", correct(family)[0])
    assert text.startswith("a against b at optim.lr=0.01, val_loss: +1.2")
    assert "after correction for 5 comparisons, which the verdict uses" in text


def test_digits():
    assert decimals(0.5) == 3
    assert decimals(0.5, 0.4, 0.6) == 3
    assert decimals(0.0012, 0.0011, 0.0013) == 5
    assert decimals(0.003) == 4
    assert decimals(25.0, 5.0, 45.0) == 2
    assert decimals(250.0, 1.0, 499.0) == 1
    assert decimals(0.0) == 3
