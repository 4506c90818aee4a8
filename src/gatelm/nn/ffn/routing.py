"""Statistics of the routers in one forward, and the losses that balance them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from gatelm.nn.shapes import Float, Tensor


@dataclass(frozen=True)
class LayerRouting:
    """Sums of one layer's router with E experts over tokens, without padding."""

    counts: Float[Tensor, "E"]
    """Number of tokens sent to each expert; without gradient, since a choice has none."""
    probs: Float[Tensor, "E"]
    """Sum of each expert's probability, before the choice."""
    z: Float[Tensor, ""]
    """Sum of squares of the logits' log-sum-exp."""
    top_k: int
    """Number of experts to which a token is sent."""


@dataclass
class Routing:
    """Routing statistics by layer, which a forward fills."""

    layers: dict[int, LayerRouting] = field(default_factory=dict)

    def counts(self) -> dict[int, Tensor]:
        """Numbers of tokens sent to each expert (E,), by layer."""
        return {index: layer.counts for index, layer in self.layers.items()}


def num_tokens(counts: Float[Tensor, "E"], top_k: int) -> Float[Tensor, ""]:
    """Return the number of counted tokens, at least 1."""
    return (counts.sum() / top_k).clamp_min(1.0)


def balance_loss(
    counts: Float[Tensor, "E"], probs: Float[Tensor, "E"], top_k: int
) -> Float[Tensor, ""]:
    """Balance loss E sum_i f_i P_i (arXiv 2101.03961, eq. 4): 1 if balanced, at most E / k.

    f_i is the share of all choices that fell on expert i, P_i its mean probability over tokens.
    `counts` are those of the whole batch (arXiv 2501.11873). `probs` may be summed over a part of
    it: the losses of the parts then add up to that of the batch, and so do their gradients, for
    only the probabilities have one.
    """
    tokens = num_tokens(counts, top_k)
    return len(counts) * (counts / (top_k * tokens) * (probs / tokens)).sum()


def router_losses(
    routing: Routing, counts: Mapping[int, Tensor]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Compute the balance loss and the z-loss of a batch's part, each a mean over layers.

    The z-loss is the mean over tokens of the squared log-sum-exp of the router's logits
    (arXiv 2202.08906, eq. 5).

    counts: those of the whole batch (E,), by layer.
    """
    balance = [
        balance_loss(counts[i], layer.probs, layer.top_k) for i, layer in routing.layers.items()
    ]
    z = [layer.z / num_tokens(counts[i], layer.top_k) for i, layer in routing.layers.items()]
    return torch.stack(balance).mean(), torch.stack(z).mean()
