"""Data parallelism from outside the model: every process has all weights and a part of the rows.

Started by `torchrun --nproc-per-node 2 --no-python gatelm train RECIPE`. Gradients are sums over
targets divided by the step's global count, so all-reducing their sum gives what one process would
compute on the whole batch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, distributed, nn

from gatelm.nn import device as nn_device

BUCKET_BYTES = 64 * 2**20


_LOST = re.compile(
    "gloo|nccl|connection (closed|reset|refused|was)|broken pipe|timed out|heartbeat", re.IGNORECASE
)
"""What torch says when another process does not answer any more."""


class RankError(OSError):
    """Another process of a training is gone: one sentence."""


@dataclass(frozen=True)
class World:
    """The processes of a run, seen from one of them."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def sums(self, values: Iterable[float]) -> list[float]:
        """Each value summed over the processes."""
        values = list(values)
        if self.size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return total.tolist()

    def sum_tensor(self, values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The sum over the processes of a tensor without gradient."""
        if self.size == 1:
            return values
        total = values.clone()
        distributed.all_reduce(total)
        return total

    def any(self, flag: bool) -> bool:
        """Whether it is true in any process."""
        return self.sums([float(flag)])[0] > 0

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in all of them."""
        if self.size == 1:
            return [value]
        out: list[Any] = [None] * self.size
        distributed.all_gather_object(out, value)
        return out

    def from_main(self, value: Any) -> Any:
        """The main process's value."""
        return self.gather(value)[0]

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up the gradients of all processes, in place; a missing one counts as zero."""
        if self.size == 1:
            return
        for bucket in _buckets(parameters):
            gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in bucket]
            flat = torch.cat([g.reshape(-1) for g in gradients])
            distributed.all_reduce(flat)
            parts = flat.split([g.numel() for g in gradients])
            for parameter, gradient, part in zip(bucket, gradients, parts, strict=True):
                parameter.grad = part.view_as(gradient)


@contextmanager
def world(device: str) -> Iterator[World]:
    """The processes torchrun started, connected for the body's time; otherwise this one alone.

    Raises:
        ConfigError: for a device that is not there.
        RankError: when another process ends, or cannot be reached any more.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = device_of(device, local_rank)
    if size == 1:
        yield World(chosen)
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    try:
        distributed.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
        yield World(chosen, distributed.get_rank(), size)
    except RuntimeError as error:
        if not _LOST.search(str(error)):
            raise
        rank = os.environ.get("RANK", "?")
        raise RankError(
            f"process {rank} of {size}: another process of this training has ended or cannot be "
            "reached, so this one ends too; what it said stands above. The newest checkpoint is "
            "kept, and the same command goes on from it"
        ) from error
    finally:
        if distributed.is_initialized():
            with suppress(RuntimeError):  # the others may be gone
                distributed.destroy_process_group()


def device_of(name: str, local_rank: int = 0) -> torch.device:
    """The device of a process: of that name, or CUDA where `auto` finds it, else the CPU.

    Raises:
        ConfigError: for a device that is not there.
    """
    device = nn_device.device_of(name, "train.device")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", local_rank)
    return device


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Trainable parameters of one dtype in runs of about BUCKET_BYTES."""
    bucket: list[nn.Parameter] = []
    size_bytes = 0
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        num_bytes = parameter.numel() * parameter.element_size()
        full = size_bytes + num_bytes > BUCKET_BYTES
        if bucket and (full or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, size_bytes = [], 0
        bucket.append(parameter)
        size_bytes += num_bytes
    if bucket:
        yield bucket
