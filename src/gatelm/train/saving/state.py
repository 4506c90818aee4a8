"""Everything a resumed run needs to go on as if it had never stopped."""

from __future__ import annotations

import logging
import platform
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import gatelm
from gatelm.config import ConfigError
from gatelm.train.parallel import World
from gatelm.train.saving.rng import rng_state, set_rng_state
from gatelm.train.watching.monitors import SpikeMonitor, Throughput

log = logging.getLogger("gatelm")


def versions() -> dict[str, str]:
    """Return the versions on which the numbers of a run depend, by name."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gatelm": gatelm.__version__,
    }


@dataclass
class TrainState:
    """The state of a run between two steps.

    `data_fingerprint` identifies the data; the position in it is a pure function of `step`, and so
    is the learning rate, so neither is stored.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    data_fingerprint: str
    config_hash: str
    loss_spikes: SpikeMonitor = field(default_factory=SpikeMonitor)
    grad_spikes: SpikeMonitor = field(default_factory=SpikeMonitor)
    throughput: Throughput = field(default_factory=Throughput)
    step: int = 0
    """Number of finished steps."""
    tokens: int = 0
    """Number of tokens read by all processes, without padding."""
    skipped_in_a_row: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Mean speed of training over the whole run, without the time of evaluation and saving."""
        seconds = self.throughput.training_seconds
        return self.tokens / seconds if seconds > 0 else 0.0

    def tensors(self) -> dict[str, Any]:
        """Return tensors of model and optimiser by parameter name, for `checkpoint`.

        The settings of parameter groups are not among them: they follow from the config.
        """
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optim": optimizer["state"]}

    def to_json(self, world: World) -> dict[str, Any]:
        """Return the state beside the tensors. Every process calls it, as random numbers differ."""
        return {
            "step": self.step,
            "tokens": self.tokens,
            "skipped_in_a_row": self.skipped_in_a_row,
            "loss_spikes": self.loss_spikes.state_dict(),
            "grad_spikes": self.grad_spikes.state_dict(),
            "throughput": self.throughput.state_dict(),
            "data_fingerprint": self.data_fingerprint,
            "config_hash": self.config_hash,
            "versions": versions(),
            "rng": world.gather(rng_state(world.device)),
        }

    def restore(self, tensors: dict[str, Any], state: dict[str, Any], world: World) -> None:
        """Restore the state that `tensors()` and `to_json()` returned.

        Raises:
            ConfigError: when the data is not what the checkpoint was trained on.
        """
        if state["data_fingerprint"] != self.data_fingerprint:
            raise ConfigError(
                f"data: fingerprint {self.data_fingerprint}, but the checkpoint was trained on "
                f"{state['data_fingerprint']}; resume with the same data, or start another run"
            )
        _, optimizer = get_state_dict(self.model, self.optimizer)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=tensors["model"],
            optim_state_dict={**optimizer, "state": tensors["optim"]},
        )
        self.step, self.tokens = state["step"], state["tokens"]
        self.skipped_in_a_row = state["skipped_in_a_row"]
        self.loss_spikes.load_state_dict(state["loss_spikes"])
        self.grad_spikes.load_state_dict(state["grad_spikes"])
        self.throughput.load_state_dict(state["throughput"])
        self._restore_rng(state, world)

    def _restore_rng(self, state: dict[str, Any], world: World) -> None:
        there, here = state["versions"]["torch"], versions()["torch"]
        if _minor(there) != _minor(here):
            log.warning("resumed under torch %s, saved under %s: other random numbers", here, there)
        elif len(state["rng"]) != world.size:
            log.warning(
                "resumed with %d processes, saved with %d: other random numbers",
                world.size,
                len(state["rng"]),
            )
        else:
            set_rng_state(state["rng"][world.rank], world.device)


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
