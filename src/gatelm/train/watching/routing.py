"""The routers of one step: their losses over the whole batch, and their statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gatelm.data.batch import Batch
from gatelm.nn.ffn.moe import MoE
from gatelm.nn.ffn.routing import Routing, router_losses
from gatelm.train.config import RouterLossConfig
from gatelm.train.loss import LanguageModel, hidden_states
from gatelm.train.parallel import World
from gatelm.train.saving.rng import preserved_rng


def has_experts(model: nn.Module) -> bool:
    """Whether any layer has a router."""
    return any(isinstance(module, MoE) for module in model.modules())


class StepRouting:
    """Balance loss and z-loss of one step, whose parts are run one after another.

    The balance loss takes the choices of the whole batch, all parts and processes. With one part
    they are known after its forward. With several they are counted first, in a forward of each
    part without gradients: the losses do not depend on how a step is cut.
    """

    def __init__(self, cfg: RouterLossConfig, world: World) -> None:
        self._cfg, self._world = cfg, world
        self._counts: dict[int, Float[Tensor, " E"]] | None = None
        self._balance = torch.zeros((), device=world.device)
        self._z = torch.zeros((), device=world.device)

    def count(
        self,
        model: LanguageModel,
        parts: Iterable[Batch],
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """Count the choices in all parts; the forwards to come draw the same random numbers."""
        device = self._world.device
        counts: dict[int, Float[Tensor, " E"]] = {}
        with torch.no_grad(), preserved_rng(device):
            for part in parts:
                here, routing = part.to(device), Routing()
                with autocast():
                    hidden_states(model, here, routing)
                for layer, chosen in routing.counts().items():
                    counts[layer] = counts[layer] + chosen if layer in counts else chosen
        self._counts = self._over_all(counts)

    def loss(self, routing: Routing) -> Float[Tensor, ""]:
        """Return the part's share of both weighted losses; the shares add up to the step's."""
        if self._counts is None:
            self._counts = self._over_all(routing.counts())
        balance, z = router_losses(routing, self._counts)
        self._balance += balance.detach()
        self._z += z.detach()
        return self._cfg.balance * balance + self._cfg.z * z

    def record(self) -> dict[str, Any]:
        """Return the step's record for metrics.jsonl. Every process must call it."""
        balance, z = self._world.sums([float(self._balance), float(self._z)])
        assert self._counts is not None
        load = {
            layer: counts / counts.sum().clamp_min(1.0) for layer, counts in self._counts.items()
        }
        return {
            "balance_loss": balance,
            "router_z_loss": z,
            "expert_load": {
                str(layer): [round(share, 5) for share in shares.tolist()]
                for layer, shares in load.items()
            },
        }

    def _over_all(self, counts: dict[int, Float[Tensor, " E"]]) -> dict[int, Float[Tensor, " E"]]:
        summed = self._world.sum_tensor(torch.cat(list(counts.values())))
        parts = summed.split([len(c) for c in counts.values()])
        return dict(zip(counts, parts, strict=True))
