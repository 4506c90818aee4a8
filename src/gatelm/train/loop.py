"""Train a run in a folder: begin it, go on with it, or find it finished."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

from gatelm.config import ConfigError
from gatelm.data.source import Source, build_source
from gatelm.nn.check import check_backward
from gatelm.optim.build import build_optimizer
from gatelm.train.config import RunConfig, TrainConfig
from gatelm.train.parallel import World, world
from gatelm.train.precision import resolved
from gatelm.train.saving import checkpoint
from gatelm.train.saving.folder import Resume, RunFolder, RunResult, exclusive
from gatelm.train.saving.rng import seed_all
from gatelm.train.saving.state import TrainState
from gatelm.train.start import model_folder, starting_model
from gatelm.train.trainer import Run
from gatelm.train.watching.metrics import MetricsLog
from gatelm.train.watching.monitors import SpikeMonitor
from gatelm.train.watching.progress import Progress

__all__ = ["Progress", "RunResult", "new_state", "train"]

log = logging.getLogger("gatelm")


def train(
    cfg: RunConfig,
    folder: Path | str,
    *,
    resume: Resume = "auto",
    report: Callable[[Progress], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Train one model in `folder`, from the beginning or from its newest checkpoint.

    A folder that holds the finished run of this config is returned as it is. With `resume="must"`
    a run may be continued to another `train.total_steps`; every other difference is refused.

    Args:
        resume: `auto` starts or goes on, `never` refuses a folder with a run, `must` one without.
        report: called at every step and phase.
        should_stop: asked before every step; True saves a checkpoint and returns.

    Raises:
        ConfigError: for a mistake in the config or folder, before anything is written.
        CheckpointError: when a checkpoint cannot be written or read.
    """
    run_folder = RunFolder(Path(folder))
    with ExitStack() as stack:
        processes = stack.enter_context(world(cfg.train.device))
        _configure_torch(cfg.train)
        _check_share(cfg.train, processes)
        cfg = processes.from_main(_resolved(cfg, run_folder) if processes.is_main else None)
        situation = run_folder.situation(cfg, resume) if processes.is_main else None
        if processes.from_main(situation) == "finished":
            return run_folder.read_result()
        if cfg.init_from is not None:
            model_folder(cfg.init_from.path)
        preparing = Progress(0, cfg.train.total_steps, None, None, "data")
        source = build_source(cfg.data, cfg.seed, report=lambda _: report(preparing))
        state = new_state(cfg, source, processes)
        if processes.is_main:
            stack.enter_context(exclusive(run_folder.path))
        seed_all(cfg.seed, processes.rank)
        damage = _restore(state, cfg.train.total_steps, run_folder, resume, processes)
        metrics = None
        if processes.is_main:
            run_folder.open(cfg, processes=processes.size, threads=torch.get_num_threads())
            keep = state.step if damage is not None else -1
            metrics = stack.enter_context(MetricsLog(run_folder.metrics, keep_through_step=keep))
            for sentence in damage or ():
                metrics.write("event", state.step, what="damaged checkpoint", detail=sentence)
        run = Run(cfg, source, state, processes, run_folder, metrics, report)
        return run.go(should_stop, resumed=damage is not None)


def new_state(cfg: RunConfig, source: Source, processes: World) -> TrainState:
    """Model and optimiser at step 0."""
    model = starting_model(
        cfg.model_for(source.vocab_size), cfg.seed, cfg.init_from, source.tokenizer
    )
    model.to(processes.device)
    check_backward(cfg.model.layers(), processes.device.type)
    spikes = cfg.train.spike_window_steps, cfg.train.spike_threshold_std
    return TrainState(
        model,
        build_optimizer(model, cfg.optim),
        source.fingerprint,
        cfg.content_hash(),
        loss_spikes=SpikeMonitor(*spikes),
        grad_spikes=SpikeMonitor(*spikes),
    )


def _restore(
    state: TrainState, total_steps: int, folder: RunFolder, resume: Resume, processes: World
) -> list[str] | None:
    """Go to the newest sound checkpoint; None where there is none.

    Returns:
        A sentence for each damaged checkpoint passed over.
    """
    damage: list[str] = []

    def passed_over(sentence: str) -> None:
        if resume == "must":
            raise checkpoint.CheckpointError(
                f"{sentence}; resume with --resume auto to go back to an older one"
            )
        log.warning("%s; trying the one before", sentence)
        damage.append(sentence)

    path = checkpoint.newest_sound(folder.checkpoints, passed_over) if processes.is_main else None
    path = processes.from_main(path)
    if path is None:
        if resume == "must":
            raise ConfigError(f"{folder.path}: the run there has no checkpoint to resume from")
        return None
    saved = checkpoint.read_state(path)
    if saved["step"] > total_steps:
        raise ConfigError(
            f"train.total_steps: {total_steps}, but the run has a checkpoint of step "
            f"{saved['step']}; choose more steps, or another folder"
        )
    tensors = state.tensors()
    checkpoint.load(path, tensors)
    state.restore(tensors, saved, processes)
    return damage


def _resolved(cfg: RunConfig, folder: RunFolder) -> RunConfig:
    """The config with the precision that a run in this folder began with, else the better here."""
    begun = folder.begun_config() if cfg.train.precision == "auto" else None
    return resolved(cfg, None if begun is None else begun.train.precision)


def _check_share(cfg: TrainConfig, processes: World) -> None:
    if cfg.batch_size < processes.size:
        raise ConfigError(
            f"train.batch_size: {cfg.batch_size} sequences cannot be shared by {processes.size} "
            "processes; raise it, or start fewer processes"
        )


def _configure_torch(cfg: TrainConfig) -> None:
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    if cfg.determinism == "strict":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(cfg.determinism == "strict")
