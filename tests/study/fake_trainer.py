"""A trainer for the tests' worker processes: quick, deterministic, and able to fail on request.

Its config imports no torch, so a worker starts in a fraction of a second.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from typing import Literal

from gatelm.config import Config


class FakeTrain(Config):
    threads: int | None = None
    device: str = "cpu"
    precision: str = "fp32"


class FakeConfig(Config):
    config_hash: str
    """Of the planned run, which the result must carry."""
    seed: int
    lr: float
    total_steps: int
    behaviour: Literal["trains", "raises", "dies", "diverges", "is slow and silent"]
    train: FakeTrain = FakeTrain()


@dataclass
class Progress:
    step: int
    total_steps: int
    loss: float
    tokens_per_second: float = 1000.0
    phase: str = "train"


def train(cfg, folder, *, resume, report, should_stop):
    """Losses from the seed and the learning rate; the step reached is kept in a file."""
    assert resume == "auto"
    folder.mkdir(parents=True, exist_ok=True)
    reached = folder / "step"
    step = int(reached.read_text()) if reached.exists() else 0
    with (folder / "starts").open("a") as file:
        file.write(f"{step} {os.getpid()} {cfg.train.threads}\n")
    while step < cfg.total_steps:
        if should_stop():
            return
        if cfg.behaviour == "raises" and not (folder / "mended").exists():
            raise ValueError("the trainer's own words")
        if cfg.behaviour == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        step += 1
        reached.write_text(str(step))
        if cfg.behaviour == "is slow and silent":
            time.sleep(0.02)
        else:
            report(Progress(step, cfg.total_steps, 1 / step))
    print("said by the trainer")
    status = "diverged" if cfg.behaviour == "diverges" else "finished"
    loss = float("nan") if status == "diverged" else 3.0 + cfg.seed / 10 + cfg.lr
    result = {
        "status": status,
        "config_hash": cfg.config_hash,
        "metrics": {"val_loss": loss},
        "seconds": time.time(),
        "parameters": 7,
        "gate_parameters": 0,
    }
    (folder / "result.json").write_text(json.dumps(result))
