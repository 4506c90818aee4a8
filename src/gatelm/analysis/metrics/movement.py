"""Metrics of how far the gates moved from where a run began; read from a `Movement`."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from typing import Any

from gatelm.analysis.metrics.metric import Metric, mean, of_subject


def _of_gates(key: str) -> Callable[[Any], float]:
    """The reader of a number's mean over gates; each gate weighs the same."""
    return lambda movement: mean(gate[key] for gate in movement.gates.values())


MOVEMENT = of_subject(
    "movement",
    Metric(
        "gate_score_change",
        "Change of the gates' scores",
        "Mean of |score at the end - score at the start| over held-out tokens, heads, channels and "
        "gates, both models reading the same tokens. For runs that begin from a trained model.",
        read=_of_gates("score_change"),
    ),
    Metric(
        "gate_mean_start",
        "Mean gate score at the start",
        "The mean gate score of the model that the run began from, over the same tokens.",
        read=_of_gates("start_mean"),
    ),
    Metric(
        "gate_weight_change",
        "Change of the gates' parameters",
        "Root mean square of the difference from the start, over all gate parameters.",
        read=lambda movement: movement.weights.get("gate_weight_change", nan),
    ),
    Metric(
        "gate_weight_change_relative",
        "Relative change of the gates' parameters",
        "Norm of the difference from the start over the norm at the start, all gates together; "
        "absent where they start at zero.",
        read=lambda movement: movement.weights.get("gate_weight_change_relative", nan),
    ),
)
