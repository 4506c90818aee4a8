"""Metrics of gate scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gatelm.analysis.metrics.metric import Metric, mean, of_subject
from gatelm.analysis.statistics.gates import GateTotals
from gatelm.analysis.statistics.totals import Totals


def _gates(totals: Totals) -> list[GateTotals]:
    return [gate for gate in totals.gates.values() if gate.tokens]


def _of(read: Callable[[GateTotals], float]) -> Callable[[Totals], float]:
    """The reader of a number's mean over gates."""
    return lambda totals: mean(map(read, _gates(totals)))


def _mean_score(totals: Totals, mark: str = "") -> float:
    return mean(gate.mark_mean(mark) if mark else gate.mean for gate in _gates(totals))


def _share_of_heads(chosen: Callable[[GateTotals], Sequence[int]]) -> Callable[[Totals], float]:
    """The reader of the share of all gated heads that `chosen` names."""

    def read(totals: Totals) -> float:
        gates = _gates(totals)
        heads = sum(gate.num_heads for gate in gates)
        return sum(len(chosen(gate)) for gate in gates) / heads if heads else math.nan

    return read


GATES = of_subject(
    "gates",
    Metric(
        "gate_mean",
        "Mean gate score",
        "Mean over tokens, heads, channels, then over layers and sites. Padding is left out.",
        read=_mean_score,
        by_mark=True,
        in_health=True,
    ),
    Metric(
        "gate_median",
        "Median gate score",
        "Median over tokens, heads and channels (to 1/2048 of the scores' range), then the mean "
        "over layers and sites.",
        read=_of(lambda gate: gate.median),
    ),
    Metric(
        "gate_below_0.1",
        "Gate scores below 0.1",
        "Share of scores < 0.1 over tokens, heads, channels; then the mean over layers and sites.",
        read=_of(lambda gate: gate.share("below_0.1")),
        in_health=True,
    ),
    Metric(
        "gate_below_0.01",
        "Gate scores below 0.01",
        "Share of scores < 0.01, averaged as those below 0.1.",
        read=_of(lambda gate: gate.share("below_0.01")),
    ),
    Metric(
        "gate_above_0.9",
        "Gate scores above 0.9",
        "Share of scores > 0.9, averaged as those below 0.1.",
        read=_of(lambda gate: gate.share("above_0.9")),
    ),
    Metric(
        "gate_first_token",
        "Mean gate score at the first token",
        "As the mean gate score, at the first token of each document only.",
        read=_of(lambda gate: gate.first_token_mean),
    ),
    Metric(
        "gate_token_std",
        "Gate's variation between tokens",
        "Standard deviation over tokens of each head's and channel's score, averaged over heads, "
        "channels, layers and sites. 0: the gate is a static scale.",
        read=_of(lambda gate: gate.token_std),
    ),
    Metric(
        "gate_dead_heads",
        "Dead heads",
        "Share of gated heads of which at least 99 % of the scores, over tokens and channels, are "
        "below 0.1.",
        read=_share_of_heads(lambda gate: gate.heads_at("below_0.1")),
    ),
    Metric(
        "gate_open_heads",
        "Always-open heads",
        "Share of gated heads of which at least 99 % of the scores, over tokens and channels, are "
        "above 0.9: such a head could do without its gate.",
        read=_share_of_heads(lambda gate: gate.heads_at("above_0.9")),
    ),
)
