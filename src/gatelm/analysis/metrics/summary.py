"""From totals to numbers: flat metrics, and the tree of analysis.json."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from gatelm.analysis.probe.protocol import GateWeights, Probe
from gatelm.analysis.statistics.totals import HEADLINE_THRESHOLD, Totals

Display = Callable[[int], str]
"""The display string of a token id."""


def flat_metrics(
    totals: Totals, bytes_per_token: float | None = None, display: Display | None = None
) -> dict[str, float]:
    """By the names of `registry.METRICS`, marked ones included; what does not apply is left out."""
    flat = {
        **_loss_metrics(totals, bytes_per_token),
        **_attention_metrics(totals),
        **_activation_metrics(totals),
        **_gate_metrics(totals),
        **({} if totals.details is None else totals.details.metrics(display)),
    }
    return {name: value for name, value in flat.items() if not math.isnan(value)}


def _loss_metrics(totals: Totals, bytes_per_token: float | None) -> dict[str, float]:
    loss = totals.loss.loss()
    flat = {"val_loss": loss, "val_ppl": _exp(loss), "accuracy": totals.loss.accuracy()}
    if bytes_per_token is not None:
        flat["val_bits_per_byte"] = loss / math.log(2) / bytes_per_token
    for mark in totals.loss.marks():
        flat[f"val_loss_{mark}"] = totals.loss.loss(mark)
        flat[f"accuracy_{mark}"] = totals.loss.accuracy(mark)
    return flat


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _attention_metrics(totals: Totals) -> dict[str, float]:
    layers = totals.attention.values()
    if not layers:
        return {}
    flat = {
        "first_token_share": _mean(layer.share() for layer in layers),
        "first_token_share_uniform": uniform_share(totals),
        "sink_rate": _mean(layer.sink_rate(HEADLINE_THRESHOLD)[0] for layer in layers),
        "sink_rate_any": _mean(layer.sink_rate_any(HEADLINE_THRESHOLD) for layer in layers),
        "attention_entropy": _mean(layer.mean("entropy") for layer in layers),
        "attention_entropy_normalized": _mean(layer.mean("normalized_entropy") for layer in layers),
        "attention_entropy_without_first": _mean(
            layer.mean("entropy_without_first") for layer in layers
        ),
        "max_attention": _mean(layer.mean("max_weight") for layer in layers),
        "max_logit": _known_max(float(layer.max_logit.max()) for layer in layers),
        "value_norm_ratio": _mean(ratio.ratio() for ratio in totals.values.values()),
        "key_norm_ratio": _mean(ratio.ratio() for ratio in totals.keys.values()),
    }
    for mark in totals.marks:
        flat[f"first_token_share_{mark}"] = _mean(layer.share(mark) for layer in layers)
        flat[f"first_token_share_uniform_{mark}"] = uniform_share(totals, mark)
    return flat


def _activation_metrics(totals: Totals) -> dict[str, float]:
    layers = totals.residual[1:]
    largest = [layer.mean("max_abs") for layer in layers]
    return {
        "max_activation": _max(largest),
        "massive_activation_mean": sum(largest) / len(largest),
        "activation_ratio": _max(layer.mean("ratio") for layer in layers),
        "activation_kurtosis": sum(layer.mean("kurtosis") for layer in layers) / len(layers),
        "norm_ratio": _max(float(layer.norm_ratio.ratio()) for layer in layers),
    }


def _gate_metrics(totals: Totals) -> dict[str, float]:
    gates = [gate.summary() for gate in totals.gates.values() if gate.tokens]
    if not gates:
        return {}
    names = {
        "gate_mean": "mean",
        "gate_median": "median",
        "gate_below_0.1": "below_0.1",
        "gate_below_0.01": "below_0.01",
        "gate_above_0.9": "above_0.9",
        "gate_first_token": "first_token_mean",
        "gate_token_std": "token_std",
    }
    flat = {name: sum(gate[key] for gate in gates) / len(gates) for name, key in names.items()}
    heads = sum(len(gate["mean_by_head"]) for gate in gates)
    for name in ("dead_heads", "open_heads"):
        flat[f"gate_{name}"] = sum(len(gate[name]) for gate in gates) / heads
    for mark in totals.marks:
        flat[f"gate_mean_{mark}"] = sum(gate["by_mark"][mark] for gate in gates) / len(gates)
    return flat


def _mean(per_head: Iterable[Tensor]) -> float:
    """Mean over heads, then layers; NaN without any."""
    means = [float(values.mean()) for values in per_head]
    return sum(means) / len(means) if means else math.nan


def _max(values: Iterable[float]) -> float:
    """The largest; NaN if any is NaN."""
    return float(torch.tensor(list(values), dtype=torch.float64).max())


def _known_max(values: Iterable[float]) -> float:
    """The largest of those that are numbers; NaN when none is."""
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def uniform_share(totals: Totals, mark: str | None = None) -> float:
    """Mean over layers: windows make it differ between them."""
    shares = [layer.uniform_share(mark) for layer in totals.attention.values()]
    return sum(shares) / len(shares)


def analysis_tree(
    totals: Totals, maps: dict[str, Any] | None, display: Display | None = None
) -> dict[str, Any]:
    """analysis.json: lists over layers of lists over heads; what is not finite is null."""
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
        tree["detail"] = totals.details.tree(display)
    if maps is not None:
        tree["attention_maps"] = maps
    return finite(tree)


def _weight_norms(probe: Probe) -> dict[tuple[int, str], dict[str, list[float]]]:
    """By (layer, site), of a probe that knows the weights of its gates."""
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

    rates = {f"{t:g}": [layer.sink_rate(t) for layer in layers] for t in totals.sink_thresholds}
    return {
        "attention_layers": list(totals.attention),
        "uniform_share": uniform_share(totals),
        "first_token_coverage": [float(layer.mean("coverage")[0]) for layer in layers],
        "first_token_share": by_head("share"),
        "first_token_share_by_mark": {mark: by_head(f"share/{mark}") for mark in totals.marks},
        "uniform_share_by_mark": {mark: uniform_share(totals, mark) for mark in totals.marks},
        "sink_rate": {t: _mean(rate[0] for rate in by_layer) for t, by_layer in rates.items()},
        "sink_rate_any": {
            f"{t:g}": _mean(layer.sink_rate_any(t) for layer in layers)
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


def finite(value: Any) -> Any:
    """`value` with every number that is not finite replaced by None: JSON has no NaN."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
