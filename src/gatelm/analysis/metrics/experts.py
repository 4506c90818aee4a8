"""Metrics of routers; read from the `ExpertUse` of each layer with experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gatelm.analysis.metrics.metric import Metric, mean, of_subject

RARELY = 0.1
"""An expert is rarely used below this part of a balanced share."""


def _busiest(use: Mapping[int, Any]) -> float:
    return float(torch.stack([layer.relative.max() for layer in use.values()]).mean())


def _rarely_used(use: Mapping[int, Any]) -> float:
    relative = torch.cat([layer.relative for layer in use.values()])
    return float((relative < RARELY).double().mean())


EXPERTS = of_subject(
    "experts",
    Metric(
        "expert_load_max",
        "Load of the busiest expert",
        "num_experts times the share of all choices that fell on the expert chosen most often "
        "(1 for a balanced router, at most num_experts / top_k); mean over the layers with "
        "experts. Padding is left out.",
        "lower",
        read=_busiest,
    ),
    Metric(
        "experts_rarely_used",
        "Experts rarely used",
        "Share of the experts of all layers that get less than a tenth of a balanced share of the "
        "choices.",
        "lower",
        read=_rarely_used,
    ),
    Metric(
        "balance_loss",
        "Balance loss",
        "num_experts * sum_i f_i P_i, f_i the share of all choices that fell on expert i, P_i its "
        "mean probability over tokens, both over all held-out tokens; mean over the layers with "
        "experts (arXiv 2101.03961, eq. 4). 1 for a balanced router.",
        "lower",
        read=lambda use: mean(layer.balance_loss for layer in use.values()),
    ),
)
