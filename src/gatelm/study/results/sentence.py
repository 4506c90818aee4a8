"""A comparison in one line of words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gatelm.study.results.numbers import bracketed, decimals, p_text
from gatelm.study.results.statistics import POWER, Comparison


def sentence(
    arm: str, baseline: str, axes: Mapping[str, Any], metric: str, comparison: Comparison
) -> str:
    """`a against b, val_loss: -0.031 [-0.050, -0.012] (95 %, 3 seeds): lower`, and what else a
    reader needs: the corrected p value, what a null could have missed, what diverged."""
    c = comparison
    at = "".join(f" at {path}={value}" for path, value in axes.items())
    verdict = "all runs that would pair diverged" if c.verdict == "diverged" else c.verdict
    out = f"{arm} against {baseline}{at}, {metric}: {interval_text(c)}: {verdict}"
    notes = [note for note in (_correction(c), _null(c), _divergence(c, arm, baseline)) if note]
    return "; ".join([out, *notes])


def interval_text(comparison: Comparison) -> str:
    """Write the difference with its interval, confidence and seeds, to significant digits."""
    c = comparison
    seeds = f"{c.n} seed" + ("" if c.n == 1 else "s")
    if c.difference is None:
        return f"no pair of finished runs ({seeds})"
    difference, ends = bracketed(c.difference, c.low, c.high, sign=True)
    if not ends:
        return f"{difference} ({seeds})"
    return f"{difference} {ends} ({100 * c.confidence:g} %, {seeds})"


def _correction(c: Comparison) -> str:
    if c.p_value is None or c.p_corrected is None or c.family_size < 2 or not c.difference:
        return ""
    p_values = f"p {p_text(c.p_value)}, {p_text(c.p_corrected)}"
    text = f"{p_values} after correction for {c.family_size} comparisons"
    alone = c.p_value < 1 - c.confidence and c.verdict == "no difference"
    return text + (", which the verdict uses" if alone else "")


def _null(c: Comparison) -> str:
    if c.verdict != "no difference" or c.minimum_detectable is None:
        return ""
    if c.minimum_detectable == 0:
        return "equal in every seed"
    size = c.minimum_detectable
    return f"smallest difference found {POWER:.0%} of the time: {size:.{decimals(size)}f}"


def _divergence(c: Comparison, arm: str, baseline: str) -> str:
    lost = [(arm, c.diverged), (baseline, c.baseline_diverged)]
    parts = [f"{name} {number}" for name, number in lost if number]
    return "diverged runs: " + ", ".join(parts) if parts else ""
