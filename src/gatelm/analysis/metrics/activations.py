"""Metrics of the residual stream after each layer."""

from __future__ import annotations

from collections.abc import Callable

from gatelm.analysis.metrics.metric import Metric, largest, mean, of_subject
from gatelm.analysis.statistics.totals import Totals


def _largest(name: str) -> Callable[[Totals], float]:
    """Return the reader of a statistic's largest value over layers, without the embedding."""
    return lambda totals: largest(layer.mean(name) for layer in totals.residual[1:])


def _mean(name: str) -> Callable[[Totals], float]:
    """Return the reader of a statistic's mean over layers, without the embedding."""
    return lambda totals: mean(layer.mean(name) for layer in totals.residual[1:])


ACTIVATIONS = of_subject(
    "activations",
    Metric(
        "max_activation",
        "Largest activation",
        "max |h| over the tokens and channels of a sequence (a row of the batch without padding), "
        "h the output of a layer (residual stream, before the final norm); mean over sequences; "
        "the layer where it is largest.",
        "lower",
        read=_largest("max_abs"),
        in_health=True,
    ),
    Metric(
        "massive_activation_mean",
        "Largest activation, mean over layers",
        "As the largest activation, but averaged over layers: M-Act of arXiv 2505.06708 (rounded "
        "there; whether the absolute value is taken is not stated).",
        "lower",
        read=_mean("max_abs"),
        in_health=True,
    ),
    Metric(
        "activation_ratio",
        "Largest over median activation",
        "max |h| / median |h| over all tokens and channels of a sequence, mean over sequences, the "
        "layer where it is largest. Massive by arXiv 2402.17762: above about 1000, and max |h| > "
        "100.",
        "lower",
        read=_largest("ratio"),
        in_health=True,
    ),
    Metric(
        "activation_kurtosis",
        "Activation kurtosis",
        "E[(h - mean)^4] / Var(h)^2 over all tokens and channels of a sequence (3 for a normal "
        "distribution), mean over sequences and layers (after arXiv 2306.12929, there of the "
        "attention output; here h is the output of a layer).",
        "lower",
        read=_mean("kurtosis"),
    ),
    Metric(
        "norm_ratio",
        "First token's norm ratio",
        "|h_1| / mean |h_t| over t >= 2, the means over documents taken first, the layer where it "
        "is largest (arXiv 2410.10781); the embedding is left out.",
        read=lambda totals: largest(float(h.norm_ratio.ratio()) for h in totals.residual[1:]),
        in_health=True,
    ),
)
