"""How a model's routers distribute the tokens among their experts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from gatelm.analysis.metrics.registry import read_subject
from gatelm.analysis.probe.layout import Placed, TokenBatch
from gatelm.analysis.probe.taps import decoder
from gatelm.nn.ffn.moe import MoE
from gatelm.nn.ffn.routing import Routing, balance_loss, num_tokens
from gatelm.nn.shapes import Float, Tensor


@dataclass(frozen=True)
class ExpertUse:
    """One layer's experts on the tokens of all batches."""

    load: Float[Tensor, "E"]
    """Share of all choices that fell on each expert."""
    probability: Float[Tensor, "E"]
    """Mean probability of each expert, before the choice."""
    balance_loss: float

    @property
    def relative(self) -> Float[Tensor, "E"]:
        """Each expert's load, divided by the load under a balanced router."""
        return self.load * len(self.load)


@torch.no_grad()
def expert_use(model: nn.Module, batches: Iterable[TokenBatch]) -> dict[int, ExpertUse]:
    """Measure the use of experts by layer in one forward; empty for a model without experts.

    The model is used as it is: put it in evaluation mode.
    """
    inner = decoder(model)
    if not any(isinstance(module, MoE) for module in inner.modules()):
        return {}
    counts: dict[int, Tensor] = {}
    probs: dict[int, Tensor] = {}
    top_k: dict[int, int] = {}
    device = next(inner.parameters()).device
    for batch in batches:
        placed, routing = Placed.on(device, batch), Routing()
        inner.hidden(placed.tokens, documents=placed.documents, routing=routing, **placed.second)
        for index, layer in routing.layers.items():
            top_k[index] = layer.top_k
            counts[index] = counts.get(index, 0.0) + layer.counts.double()
            probs[index] = probs.get(index, 0.0) + layer.probs.double()
    return {index: _use(counts[index], probs[index], top_k[index]) for index in counts}


def expert_metrics(use: dict[int, ExpertUse]) -> dict[str, float]:
    """Flat metrics by their names in `registry.METRICS`; empty for a model without experts."""
    return read_subject("experts", use) if use else {}


def expert_tree(use: dict[int, ExpertUse]) -> dict[str, dict[str, list[float]]]:
    """The part of analysis.json: load and probability of every expert, by layer."""
    return {
        str(index): {"load": layer.load.tolist(), "probability": layer.probability.tolist()}
        for index, layer in use.items()
    }


def _use(counts: Float[Tensor, "E"], probs: Float[Tensor, "E"], top_k: int) -> ExpertUse:
    tokens = num_tokens(counts, top_k)
    return ExpertUse(
        counts / (top_k * tokens), probs / tokens, float(balance_loss(counts, probs, top_k))
    )
