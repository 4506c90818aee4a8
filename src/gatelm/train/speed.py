"""The speed of training on this machine, measured on a few real steps and remembered."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import median

import torch

from gatelm.data.batch import Batch
from gatelm.data.config import TextDataConfig
from gatelm.data.source import build_source
from gatelm.nn.count import count, flops_per_token
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.config import RunConfig
from gatelm.train.measured import remembered
from gatelm.train.parallel import World, device_of
from gatelm.train.precision import product_speed
from gatelm.train.setup import state_of
from gatelm.train.step import train_step

UTILISATION = 0.4
"""Share of the matrix products' speed that training reaches, if no step was measured."""
_MAX_STEP_SECONDS = 2.0
_MAX_PARAMETERS = 100_000_000
"""Limits above which a few steps take too much time or memory for an estimate."""
_STEPS = 5
_SECONDS = 1.5


@dataclass(frozen=True)
class TrainingSpeed:
    """FLOP/s of training, in the counting of `nn.count.flops_per_token`."""

    flops_per_second: float
    measured: bool
    """Whether steps were measured; if not, it is a share of the matrix products' speed."""


def training_flops(cfg: RunConfig, model: ModelConfig) -> float:
    """Count matrix-product FLOPs of all training steps; `model` has its vocabulary."""
    return cfg.train.total_steps * _step_flops(cfg, model)


def run_flops(cfg: RunConfig, model: ModelConfig) -> float:
    """Count FLOPs of training, validations and measurements; a run's time is proportional."""
    train, length = cfg.train, cfg.data.seq_len
    validations = 1 + _times(train.total_steps, train.eval_every_steps)
    looks = _times(train.total_steps, train.health_every_steps)
    causal = _CAUSAL_PASSES * train.health_sequences * (train.final_causal != "off")
    forward = validations * train.eval_sequences + _LOOK_PASSES * (
        looks * train.health_sequences + train.eval_sequences
    )
    tokens = (forward + causal) * length
    return training_flops(cfg, model) + tokens * flops_per_token(model, length, training=False)


_LOOK_PASSES = 3
"""Number of forward passes that take as long as a measurement of attention."""
_CAUSAL_PASSES = 12
"""Number of forward passes that take as long as the causal check of the gates."""


def _times(steps: int, every: int | None) -> int:
    return 0 if every is None else (steps - 1) // every + 1


def _step_flops(cfg: RunConfig, model: ModelConfig) -> float:
    tokens = cfg.train.batch_size * cfg.data.seq_len
    return float(tokens * flops_per_token(model, cfg.data.seq_len))


def training_speed(
    cfg: RunConfig, model: ModelConfig, *, threads: int, processes: int = 1
) -> TrainingSpeed:
    """Return the speed of one run among `processes` that train side by side on this machine.

    A model too large to time in a moment gets `UTILISATION` of the speed of its products.

    Args:
        cfg: with a resolved precision.
        model: the run's, with its vocabulary.
        threads: CPU threads of each process.
    """
    device = device_of(cfg.train.device)
    share = 1 if device.type == "cpu" else 1 / processes
    assert cfg.train.precision != "auto", "resolve the precision first"
    guess = UTILISATION * share * product_speed(cfg, threads).of(cfg.train.precision)
    flops = _step_flops(cfg, model)
    if flops / guess > _MAX_STEP_SECONDS or count(model).total > _MAX_PARAMETERS:
        return TrainingSpeed(guess, measured=False)
    same = cfg.train.replace(total_steps=1)
    key = [cfg.replace(name="run", seed=0, train=same, model=model).tree(), threads, processes]
    found = remembered(
        "steps", key, device, lambda: {"seconds": _step_seconds(cfg, model, threads, processes)}
    )
    return TrainingSpeed(flops / found["seconds"], measured=True)


def _step_seconds(cfg: RunConfig, model: ModelConfig, threads: int, processes: int) -> float:
    task = pickle.dumps((cfg, model, threads))
    if processes == 1:
        return _time_steps(task)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        list(pool.map(_imported, range(processes)))  # so that all of them time steps at once
        return median(pool.map(_time_steps, [task] * processes))


def _imported(_: int) -> None:
    time.sleep(0.2)  # long enough that no process takes the task of another one


def _time_steps(task: bytes) -> float:
    """Measure the median seconds of a step, from the second on, on random tokens."""
    cfg, model, threads = pickle.loads(task)
    before, world = torch.get_num_threads(), World(device_of(cfg.train.device))
    torch.set_num_threads(threads)
    try:
        decoder = Decoder(model)
        init_weights(decoder, 0)
        decoder.to(world.device)
        state = state_of(decoder, cfg)
        seconds: list[float] = []
        for batch in _batches(cfg, model):
            begun = time.perf_counter()
            train_step(
                state,
                batch,
                lr=cfg.optim.lr,
                grad_clip=cfg.optim.grad_clip,
                cfg=cfg.train,
                world=world,
            )
            seconds.append(time.perf_counter() - begun)
            if len(seconds) > _STEPS and sum(seconds) > _SECONDS:
                break
        return median(seconds[1:])
    finally:
        torch.set_num_threads(before)


def _batches(cfg: RunConfig, model: ModelConfig) -> Iterator[Batch]:
    size = cfg.train.batch_size
    if not isinstance(cfg.data, TextDataConfig):
        source = build_source(cfg.data, 0)
        step = 0
        while True:
            yield source.batch(step, batch_size=size)
            step += 1
    random = torch.Generator().manual_seed(0)
    while True:
        shape = (size, cfg.data.seq_len + 1)
        rows = torch.randint(model.vocab_size or 1, shape, generator=random)
        yield Batch(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
