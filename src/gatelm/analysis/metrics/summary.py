"""Numbers made of an analysis's totals: flat metrics, and the tree of analysis.json."""

from __future__ import annotations

from typing import Any

import torch

from gatelm.analysis.metrics.attention import uniform_share
from gatelm.analysis.metrics.metric import Subject, mean_over_heads
from gatelm.analysis.metrics.registry import read_subject
from gatelm.analysis.probe.protocol import GateWeights, Probe
from gatelm.analysis.statistics.totals import Totals
from gatelm.io.files import finite

SUBJECTS: tuple[Subject, ...] = (
    "loss", "text", "attention", "activations", "gates", "details", "other"
)  # fmt: skip
"""Subjects whose metrics read `Totals`, in the order of result.json."""


def flat_metrics(totals: Totals, *, only_health: bool = False) -> dict[str, float]:
    """The metrics that apply, by their names in `registry.METRICS`, marked ones included."""
    flat: dict[str, float] = {}
    for subject in SUBJECTS:
        flat |= read_subject(subject, totals, totals.marks, only_health=only_health)
    return flat


def analysis_tree(totals: Totals, maps: dict[str, Any] | None) -> dict[str, Any]:
    """Build the tree of analysis.json: lists by layer of lists by head, null if not finite."""
    layers = list(totals.attention.values())
    norms = {} if totals.details is None else _weight_norms(totals.probe)
    tree: dict[str, Any] = {
        "seq_len": totals.seq_len,
        "num_sequences": totals.num_sequences,
        "bos": same_first_token(totals) == 1.0,
        "same_first_token": same_first_token(totals),
        "num_layers": len(totals.residual) - 1,
        "num_heads": max((layer.num_heads for layer in layers), default=0),
        **({} if not layers else _attention_tree(totals)),
        "residual": _residual_tree(totals),
        "gates": [
            {"layer": layer, "site": site, **gate.summary(), **norms.get((layer, site), {})}
            for (layer, site), gate in totals.gates.items()
            if gate.tokens
        ],
    }
    if totals.details is not None:
        tree["detail"] = totals.details.tree()
    if maps is not None:
        tree["attention_maps"] = maps
    return finite(tree)


def _weight_norms(probe: Probe) -> dict[tuple[int, str], dict[str, list[float]]]:
    """Gate weight norms by (layer, site), of a probe that knows the weights of its gates."""
    if not isinstance(probe, GateWeights):
        return {}
    norms = probe.gate_weight_norms()
    return {place: {"weight_norms": heads.tolist()} for place, heads in norms.items()}


def same_first_token(totals: Totals) -> float:
    """Share of documents that begin with the most frequent first token: 1 with a BOS token."""
    counts = totals.first_tokens
    return max(counts.values()) / counts.total() if counts else 0.0


def _attention_tree(totals: Totals) -> dict[str, Any]:
    layers = list(totals.attention.values())

    def by_head(name: str) -> list[list[float]]:
        return [layer.mean(name).tolist() for layer in layers]

    mean = mean_over_heads
    rates = {f"{t:g}": [layer.sink_rate(t) for layer in layers] for t in totals.sink_thresholds}
    return {
        "attention_layers": list(totals.attention),
        "uniform_share": uniform_share(totals),
        "first_token_coverage": [float(layer.mean("coverage")[0]) for layer in layers],
        "first_token_share": by_head("share"),
        "first_token_share_by_mark": {mark: by_head(f"share/{mark}") for mark in totals.marks},
        "uniform_share_by_mark": {mark: uniform_share(totals, mark) for mark in totals.marks},
        "sink_rate": {t: mean(rate[0] for rate in by_layer) for t, by_layer in rates.items()},
        "sink_rate_any": {
            f"{t:g}": mean(layer.sink_rate_any(t) for layer in layers)
            for t in totals.sink_thresholds
        },
        "sink_rate_by_position": {
            t: torch.stack([rate.mean(dim=-1) for rate in by_layer]).mean(dim=0).tolist()
            for t, by_layer in rates.items()
        },
        "entropy": by_head("entropy"),
        "normalized_entropy": by_head("normalized_entropy"),
        "entropy_without_first": by_head("entropy_without_first"),
        "max_attention": by_head("max_weight"),
        "max_logit": [layer.max_logit.tolist() for layer in layers],
        "value_norm_ratio": [ratio.ratio().tolist() for ratio in totals.values.values()],
        "key_norm_ratio": [ratio.ratio().tolist() for ratio in totals.keys.values()],
    }


def _residual_tree(totals: Totals) -> dict[str, Any]:
    places = totals.residual
    return {
        "max_abs": [place.mean("max_abs") for place in places],
        "median_abs": [place.mean("median_abs") for place in places],
        "ratio": [place.mean("ratio") for place in places],
        "kurtosis": [place.mean("kurtosis") for place in places],
        "norm_ratio": [float(place.norm_ratio.ratio()) for place in places],
        "largest": [
            {"value": place.max_abs_overall, "position": position, "channel": channel}
            for place in places
            for position, channel in (place.largest_at,)
        ],
    }
