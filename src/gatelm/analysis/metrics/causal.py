"""Metrics of an analysis that is done again with the gates forced."""

from __future__ import annotations

from collections.abc import Iterable

from gatelm.analysis.metrics.metric import Metric

FORCED_GATES = {
    "open": "every gate score set to 1, as if there were no gate (an added gate adds 1)",
    "shut": "every gate score set to 0",
    "mean": "every gate score set to its head's and channel's mean, so that no token matters",
}


def causal_name(stem: str, how: str) -> str:
    """The metric of `stem`'s change under a way of forcing: `loss_gates_shut_change`."""
    return f"{'loss' if stem == 'val_loss' else stem}_gates_{how}_change"


def causal_metrics(metrics: Iterable[Metric]) -> tuple[Metric, ...]:
    """The change of each metric that has `forced`, under each way of forcing the gates."""
    return tuple(
        Metric(
            causal_name(metric.name, how),
            f"{metric.label}, gates {'at their mean' if how == 'mean' else how}: change",
            f"The {metric.label.lower()} of the trained model with {what}, minus that of the model "
            "as it was trained, both on the held-out sequences of a health pass.",
            None,
            metric.unit,
            by_mark=metric.by_mark,
            subject="causal",
        )
        for metric in metrics
        if metric.forced
        for how, what in FORCED_GATES.items()
    )
