"""The machine divided between runs: worker processes and torch threads."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

import torch

from gatelm.config.base import ConfigError
from gatelm.study.planning.plan import Plan

MAX_WORKERS = 8


@dataclass(frozen=True)
class Resources:
    """Division of the machine: runs at a time, CPU threads of each, and the device."""

    workers: int
    threads: int
    device: Literal["cpu", "cuda"] = "cpu"


def available_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share(plan: Plan, workers: int | None = None) -> Resources:
    """Choose the number of worker processes and the threads of each.

    By default as many workers as CPUs (`MAX_WORKERS` and the plan's runs at most), and one on a
    GPU. It is the whole plan that counts, not what is left of it, so that the second half of a
    study computes with the threads of the first: the order of a sum depends on them.

    Raises:
        ConfigError: for less than one worker.
    """
    if workers is not None and workers < 1:
        raise ConfigError(f"--workers {workers}: at least one worker is needed")
    devices = {run.config.train.device for run in plan.runs}
    on_gpu = any(d.startswith("cuda") for d in devices) or (
        "auto" in devices and torch.cuda.is_available()
    )
    cpus = available_cpus()
    if workers is None:
        workers = 1 if on_gpu else max(1, min(len(plan.runs), cpus, MAX_WORKERS))
    return Resources(workers, max(1, cpus // workers), "cuda" if on_gpu else "cpu")
