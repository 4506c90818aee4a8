"""The setup before the first step: torch's settings, the state at step 0 or a checkpoint's."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch
from torch import nn

from gatelm.config import ConfigError, foreign
from gatelm.data.source import Source
from gatelm.nn.check import check_backward
from gatelm.nn.count import count
from gatelm.nn.device import available_bytes
from gatelm.nn.model import ModelConfig
from gatelm.train.config import RunConfig, TrainConfig
from gatelm.train.parallel import World
from gatelm.train.precision import resolved
from gatelm.train.saving import checkpoint
from gatelm.train.saving.folder import Resume, RunFolder
from gatelm.train.saving.state import TrainState
from gatelm.train.start import starting_model
from gatelm.train.watching.monitors import SpikeMonitor

log = logging.getLogger("gatelm")


def configure_torch(cfg: TrainConfig) -> None:
    """Set torch's threads and determinism as the config asks."""
    if cfg.threads is not None:
        torch.set_num_threads(cfg.threads)
    if cfg.determinism == "strict":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(cfg.determinism == "strict")


def check_share(cfg: TrainConfig, processes: World) -> None:
    """Check that every process has at least one row of a batch.

    Raises:
        ConfigError: when there are more processes than sequences in a batch.
    """
    if cfg.batch_size < processes.size:
        raise ConfigError(
            f"train.batch_size: {cfg.batch_size} sequences cannot be shared by {processes.size} "
            "processes; raise it, or start fewer processes"
        )


def with_chosen_precision(cfg: RunConfig, folder: RunFolder) -> RunConfig:
    """Set the precision with which a run in this folder began, else the better one here."""
    begun = folder.begun_config() if cfg.train.precision == "auto" else None
    return resolved(cfg, None if begun is None else begun.train.precision)


BYTES_PER_PARAMETER = 16
"""Bytes of a parameter's weight, gradient and two moments of the optimiser, in fp32."""


def check_memory(model: ModelConfig, processes: World) -> None:
    """Compare the memory of training with the free memory, before anything is allocated.

    Raises:
        ConfigError: for a model that does not fit.
    """
    parameters = count(model).total
    needed, free = BYTES_PER_PARAMETER * parameters, available_bytes(processes.device)
    if free is not None and needed > free:
        raise ConfigError(
            f"model: {parameters:,} parameters need {needed / 1e9:,.1f} GB for weights, gradients "
            f"and optimiser, and {free / 1e9:,.1f} GB are free on {processes.device}; choose a "
            "smaller hidden_dim, ffn_dim, num_layers or vocabulary"
        )


def new_state(cfg: RunConfig, source: Source, processes: World) -> TrainState:
    """Make the model and optimiser at step 0.

    Raises:
        ConfigError: for a model that does not fit in memory, or cannot be trained on this device.
    """
    model_cfg = cfg.model_for(source.vocab_size)
    check_memory(model_cfg, processes)
    model = starting_model(model_cfg, cfg.seed, cfg.init_from, source.tokenizer)
    model.to(processes.device)
    check_backward(cfg.model.layers(), processes.device.type)
    return state_of(model, cfg, source.fingerprint, cfg.content_hash())


def state_of(
    model: nn.Module, cfg: RunConfig, data_fingerprint: str = "", config_hash: str = ""
) -> TrainState:
    """Make the state of a model at step 0, with a new optimiser."""
    spikes = cfg.train.spike_window_steps, cfg.train.spike_threshold_std
    return TrainState(
        model,
        cfg.optim.build(model),
        data_fingerprint,
        config_hash,
        loss_spikes=SpikeMonitor(*spikes),
        grad_spikes=SpikeMonitor(*spikes),
    )


def restore(
    state: TrainState, total_steps: int, folder: RunFolder, resume: Resume, processes: World
) -> list[str] | None:
    """Bring `state` to the newest sound checkpoint of the folder.

    Returns:
        A sentence for each damaged checkpoint that was passed over; None without a checkpoint.

    Raises:
        CheckpointError: when all are damaged; with `resume="must"`, when the newest one is.
        ConfigError: when there is none to resume from, or its step is beyond `total_steps`.
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
    with foreign(str(path)):
        _take_over(state, path, total_steps, processes)
    return damage


def _take_over(state: TrainState, path: Path, total_steps: int, processes: World) -> None:
    saved = checkpoint.read_state(path)
    if saved["step"] > total_steps:
        raise ConfigError(
            f"train.total_steps: {total_steps}, but the run has a checkpoint of step "
            f"{saved['step']}; choose more steps, or another folder"
        )
    tensors = state.tensors()
    checkpoint.load(path, tensors)
    state.restore(tensors, saved, processes)
