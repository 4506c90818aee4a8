"""One optimiser step: accumulate, check, clip, update."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gatelm.data.batch import IGNORE, Batch
from gatelm.nn.ffn.routing import Routing
from gatelm.optim.groups import frozen, set_lr
from gatelm.train.config import TrainConfig
from gatelm.train.loss import LanguageModel, sum_loss
from gatelm.train.parallel import World
from gatelm.train.saving.state import TrainState
from gatelm.train.watching.routing import StepRouting, has_experts

Status = Literal["updated", "skipped", "diverged"]


@dataclass(frozen=True)
class StepOutcome:
    """The outcome of a step: mean loss over its targets, gradient norm before clipping, tokens."""

    status: Status
    loss: float
    grad_norm: float
    tokens: int
    spike: str | None = None
    """Name of the value that spiked or was not finite, for the log."""
    routing: dict[str, Any] | None = None
    """Statistics of the routers, for the log; None if no layer has experts."""


def train_step(
    state: TrainState,
    batch: Batch,
    *,
    lr: float,
    grad_clip: float | None,
    cfg: TrainConfig,
    world: World,
) -> StepOutcome:
    """Run `batch`, this process's rows of the step, and update the weights unless it must not.

    The loss is the sum over valid targets divided by their number over all microbatches and
    processes; what is minimised has the routers' losses on top. Nothing is updated when the loss
    or the gradient norm is not finite, and no group before its `train_from_step`.
    """
    targets, tokens = world.sums([float((batch.targets != IGNORE).sum()), float(_tokens(batch))])
    with frozen(state.optimizer, state.step):
        loss, norm, routing = _accumulate(state, batch, max(targets, 1.0), cfg, world)
    status, spike = judge(state, loss, norm, cfg)
    if status == "updated":
        if grad_clip is not None:
            nn.utils.clip_grads_with_norm_(state.model.parameters(), grad_clip, torch.tensor(norm))
        set_lr(state.optimizer, lr, state.step)
        state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    if status != "diverged":
        state.step += 1
        state.tokens += int(tokens)
        state.throughput.add_tokens(int(tokens))
    return StepOutcome(status, loss, norm, int(tokens), spike, routing)


def judge(
    state: TrainState, loss: float, grad_norm: float, cfg: TrainConfig
) -> tuple[Status, str | None]:
    """Decide to update, skip or stop, say what was wrong, and count values in the monitors."""
    finite = math.isfinite(loss) and math.isfinite(grad_norm)
    if cfg.spike_policy == "off":
        return ("updated", None) if finite else ("diverged", _what(True, True, loss, grad_norm))
    loss_spike = state.loss_spikes.is_spike(loss)
    grad_spike = state.grad_spikes.is_spike(grad_norm)
    spike = _what(loss_spike, grad_spike, loss, grad_norm)
    skip = cfg.spike_policy == "skip" and spike is not None
    state.loss_spikes.add(loss, accept=finite and not skip)
    state.grad_spikes.add(grad_norm, accept=finite and not skip)
    state.skipped_in_a_row = state.skipped_in_a_row + 1 if skip else 0
    if skip and state.skipped_in_a_row > cfg.max_skipped_steps:
        return "diverged", f"{spike}; {cfg.max_skipped_steps} steps in a row were skipped before"
    if skip:
        return "skipped", spike
    return ("updated" if finite else "diverged"), spike


def autocast(cfg: TrainConfig, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of forward passes in the run's precision, which is not `auto`."""
    assert cfg.precision != "auto", "train.precision: resolve it first (train.precision.resolved)"
    if cfg.precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def _accumulate(
    state: TrainState, batch: Batch, targets: float, cfg: TrainConfig, world: World
) -> tuple[float, float, dict[str, Any] | None]:
    """Accumulate gradients of the mean loss, summed over processes.

    Returns:
        The mean loss, the gradient norm, and what the routers did.
    """
    model: LanguageModel = state.model  # pyright: ignore[reportAssignmentType]
    precision = partial(autocast, cfg, world.device)
    routers = StepRouting(cfg.router, world) if has_experts(state.model) else None
    parts = list(micro_batches(batch, cfg.micro_batch_size))
    if routers is not None and len(parts) > 1:
        routers.count(model, parts, precision)
    total = torch.zeros((), device=world.device)
    for micro in parts:
        routing = None if routers is None else Routing()
        with precision():
            loss = sum_loss(model, micro.to(world.device), routing=routing) / targets
        total += loss.detach()
        if routers is not None and routing is not None:
            loss = loss + routers.loss(routing)
        loss.backward()
    world.sum_gradients(state.model.parameters())
    norm = gradient_norm(state.model)
    record = None if routers is None else routers.record()
    return world.sums([float(total)])[0], float(norm), record


def gradient_norm(model: nn.Module) -> Float[Tensor, ""]:
    """Return the L2 norm of all gradients together."""
    return nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])


def micro_batches(batch: Batch, size: int | None) -> Iterator[Batch]:
    """Split the batch into pieces of `size` rows; the last may be smaller."""
    rows = len(batch)
    if size is None or size >= rows:
        yield batch
        return
    for start in range(0, rows, size):
        yield batch.rows(start, min(start + size, rows))


def _tokens(batch: Batch) -> int:
    return batch.tokens.numel() if batch.documents is None else int((batch.documents >= 0).sum())


def _what(loss_spike: bool, grad_spike: bool, loss: float, grad_norm: float) -> str | None:
    parts = []
    if loss_spike or not math.isfinite(loss):
        parts.append(f"loss {loss:.4g}")
    if grad_spike or not math.isfinite(grad_norm):
        parts.append(f"gradient norm {grad_norm:.4g}")
    return ", ".join(parts) or None
