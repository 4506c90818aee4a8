"""The naive twin of `nn.ffn.moe`: one token, one expert at a time, with plain formulas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from gatelm.nn.ffn.moe import MoEConfig
from gatelm.nn.shapes import Float, Int, Tensor
from gatelm.testing.reference import REFERENCE_ACTIVATIONS

Params = Mapping[str, Tensor]


def reference_moe(cfg: MoEConfig, params: Params, x: Float[Tensor, "B T D"]) -> Tensor:
    """Compute the layer's branch (B,T,D); `params` by their names in `nn.ffn.moe.MoE`."""
    return torch.stack([torch.stack([_token(cfg, params, t) for t in row]) for row in x])


def reference_losses(
    cfg: MoEConfig,
    params: Params,
    x: Float[Tensor, "B T D"],
    documents: Int[Tensor, "B T"] | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute balance loss and z-loss of a batch from their definitions, without padding."""
    rows = range(x.shape[0])
    tokens = [
        x[b, t]
        for b in rows
        for t in range(x.shape[1])
        if documents is None or documents[b, t] >= 0
    ]
    probabilities = [_probabilities(params, token) for token in tokens]
    chosen = [i for p in probabilities for i in _best(p, cfg.top_k)]
    balance = torch.zeros((), dtype=x.dtype)
    for i in range(cfg.num_experts):
        share = sum(1 for other in chosen if other == i) / len(chosen)
        balance = balance + share * sum(p[i] for p in probabilities) / len(tokens)
    z = sum(torch.log(_exponentials(params, token).sum()) ** 2 for token in tokens) / len(tokens)
    assert isinstance(z, Tensor)
    return cfg.num_experts * balance, z


def _token(cfg: MoEConfig, params: Params, x: Tensor) -> Tensor:
    probabilities = _probabilities(params, x)
    best = _best(probabilities, cfg.top_k)
    total = sum(probabilities[i] for i in best) if cfg.weights == "normalised" else 1.0
    act = REFERENCE_ACTIVATIONS[cfg.activation]
    y = torch.zeros_like(x)
    for i in best:
        gate, up, down = (params[f"experts.{n}_proj"][i] for n in ("gate", "up", "down"))
        y = y + probabilities[i] / total * (down @ (act(gate @ x) * (up @ x)))
    if cfg.shared is not None:
        gate, up, down = (params[f"shared.{n}_proj.weight"] for n in ("gate", "up", "down"))
        shared = down @ (act(gate @ x) * (up @ x))
        if cfg.shared.gate == "sigmoid":
            shared = shared / (1 + torch.exp(-(params["shared_gate.weight"] @ x)))
        y = y + shared
    return y


def _exponentials(params: Params, x: Tensor) -> Tensor:
    return torch.exp(params["router.weight"] @ x)


def _probabilities(params: Params, x: Tensor) -> Tensor:
    exponentials = _exponentials(params, x)
    return exponentials / exponentials.sum()


def _best(probabilities: Iterable[Tensor], count: int) -> list[int]:
    values = [float(p.detach()) for p in probabilities]
    return sorted(range(len(values)), key=lambda i: -values[i])[:count]
