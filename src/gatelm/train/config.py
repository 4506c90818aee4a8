"""A complete run as data: model, data, optimiser and how to train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from gatelm.config import Config, ConfigError, FolderName, not_identity
from gatelm.config.load import merge
from gatelm.data.config import DataConfig, PatchRecallConfig
from gatelm.longcontext.scaling import scaled
from gatelm.nn.model import ModelConfig
from gatelm.optim.adamw import AdamWConfig
from gatelm.optim.config import OptimConfig
from gatelm.train.longer_config import LongerConfig, longer_data
from gatelm.train.start import InitFrom, tokenizer_file, trained_config


class RouterLossConfig(Config):
    """Weights of the losses that the routers of mixtures of experts add to the loss.

    Without experts they have no effect. Both losses are means over the layers with experts and over
    the step's tokens, in all microbatches and processes; padding is left out. A balanced router has
    a balance loss of 1.
    """

    balance: float = Field(default=0.01, ge=0)
    """Weight of num_experts * sum_i f_i P_i (`nn.ffn.routing.balance_loss`)."""
    z: float = Field(default=0.001, ge=0)
    """Weight of the squared log-sum-exp of the router's logits (arXiv 2202.08906)."""


class TrainConfig(Config):
    """How to train: length, batches, precision, and what happens along the way."""

    total_steps: int = Field(ge=1)
    """Optimiser steps, and the horizon of the learning-rate schedule."""
    batch_size: int = Field(default=32, ge=1)
    """Sequences per step, over all processes."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Sequences in memory at once, per process; null: the whole share of the batch."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """The precision of activations and matrix products; weights, norms, softmax and loss stay in
    fp32. auto: bf16 where it is much faster on this machine, else fp32."""
    eval_every_steps: int | None = not_identity(None, ge=1)
    """Steps between two validations; null: one at the end only."""
    eval_sequences: int = Field(default=64, ge=1)
    """Held-out sequences of a validation, and of the final look."""
    health_every_steps: int | None = not_identity(None, ge=1)
    """Steps between two looks at sinks, activations and gates; null: one at the end only."""
    health_sequences: int = Field(default=8, ge=1)
    """Held-out sequences of a health pass."""
    router: RouterLossConfig = RouterLossConfig()
    """Losses of the routers, where there are experts."""
    final_causal: Literal["off", "gates"] = "off"
    """gates: after training, how loss and sinks change with the gates forced open, shut, or to
    their mean, on `health_sequences` held-out sequences."""
    checkpoint_every_steps: int | None = not_identity(None, ge=1)
    """Steps between two checkpoints, with one at the end; null: one only when stopped early."""
    keep_checkpoints: int = not_identity(2, ge=1)
    """Number of checkpoints to keep; older ones are deleted."""
    log_every_steps: int = not_identity(10, ge=1)
    """Steps between two lines in metrics.jsonl."""
    stop_at_step: int | None = not_identity(None, ge=0)
    """Save and stop here, as if interrupted; the schedule still runs to total_steps."""
    spike_policy: Literal["off", "log", "skip"] = "log"
    """What a spike of the loss or the gradient norm causes: nothing, an event in metrics.jsonl, or
    that and a step without update."""
    spike_window_steps: int = Field(default=128, ge=2)
    """Number of steps before a value by which it is judged."""
    spike_threshold_std: float = Field(default=6.0, gt=0)
    """A spike is above the window's mean by more than this number of standard deviations."""
    max_skipped_steps: int = Field(default=16, ge=1)
    """Largest number of steps to skip in a row; with one more the run has diverged."""
    device: str = not_identity("auto")
    """auto (CUDA where there is one, else CPU), or a torch device."""
    threads: int | None = not_identity(None, ge=1, le=1024)
    """Number of torch's threads in this process; null: as they are."""
    determinism: Literal["default", "strict"] = not_identity("default")
    """strict: only deterministic kernels, slower on CUDA; the CPU is deterministic anyway."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.micro_batch_size is not None and self.micro_batch_size > self.batch_size:
            raise ValueError(
                f"micro_batch_size {self.micro_batch_size} is more than "
                f"batch_size {self.batch_size}"
            )
        return self


class RunConfig(Config):
    """One training run."""

    name: FolderName = not_identity("run")
    """Shown in reports and used for the default output folder."""
    seed: int = Field(default=0, ge=0)
    """The seed of the initial weights, the data order and dropout."""
    init_from: InitFrom | None = None
    """A trained model to go on from, or the path of its folder. What `model` leaves out is then
    that model's, and a text's `data.tokenizer` too; `model` may have more gates."""
    model: ModelConfig
    data: DataConfig
    optim: OptimConfig = AdamWConfig()
    train: TrainConfig
    longer: LongerConfig | None = None
    """Measurements of the trained model on longer rows; null: none."""

    @model_validator(mode="before")
    @classmethod
    def _take_over_the_trained_model(cls, tree: Any) -> Any:
        if not isinstance(tree, Mapping):
            return tree
        start = tree.get("init_from")
        start = {"path": start} if isinstance(start, str) else start
        path = start.path if isinstance(start, InitFrom) else None
        if isinstance(start, Mapping) and isinstance(start.get("path"), str):
            path = start["path"]
        if path is None or not path.strip():
            return {**tree, "init_from": start} if start is not None else tree
        return {
            **tree,
            "init_from": start,
            "model": _completed(tree.get("model"), path),
            "data": _with_tokenizer(tree.get("data"), path),
        }

    @model_validator(mode="after")
    def _rows_fit_learned_positions(self) -> Self:
        learned = self.model.position_embedding
        if learned is not None and self.data.seq_len > learned.max_tokens:
            raise ValueError(
                f"data.seq_len {self.data.seq_len} is more than "
                f"model.position_embedding.max_tokens {learned.max_tokens}"
            )
        return self

    @model_validator(mode="after")
    def _fits_longer_rows(self) -> Self:
        if self.longer is not None:
            check_longer(self)
        return self

    @model_validator(mode="after")
    def _reads_the_second_sequence(self) -> Self:
        given = isinstance(self.data, PatchRecallConfig)
        reads = self.model.cross is not None
        if given != reads:
            raise ValueError(
                f"data.kind: {self.data.kind} has {'a' if given else 'no'} second sequence, and "
                f"the model reads {'one' if reads else 'none'} (model.layer.mixer.memory)"
            )
        encoder = self.model.encoder
        if isinstance(self.data, PatchRecallConfig) and encoder is not None:
            expected = {"kind": "patches", "dim": self.data.patch_dim}
            if encoder.input.tree() != expected:
                raise ValueError(f"model.encoder.input: the data needs {expected}")
            if encoder.max_tokens < self.data.num_patches:
                raise ValueError(
                    f"model.encoder.max_tokens: {encoder.max_tokens} is fewer than "
                    f"data.num_patches {self.data.num_patches}"
                )
        return self

    def model_for(self, vocab_size: int) -> ModelConfig:
        """Return the model's config with the vocabulary of the data.

        A trained model keeps its own vocabulary, which may be larger than its tokenizer's.

        Raises:
            ConfigError: when the config states another one.
        """
        stated = self.model.vocab_size
        if self.init_from is not None:
            own = stated or trained_config(self.init_from.path).vocab_size
            if own is not None and vocab_size > own:
                raise ConfigError(
                    f"data: a vocabulary of {vocab_size}, but the model of init_from has one of "
                    f"{own}; use that model's tokenizer"
                )
            return self.model.replace(vocab_size=own)
        if stated is not None and stated != vocab_size:
            raise ConfigError(
                f"model.vocab_size: {stated}, but the data has a vocabulary of {vocab_size}; "
                "set it to null to take the data's"
            )
        return self.model.replace(vocab_size=vocab_size)


def _completed(model: Any, path: str) -> Any:
    """Complete the model's tree from the trained model."""
    if isinstance(model, ModelConfig) or (isinstance(model, Mapping) and "hidden_dim" in model):
        return model
    if model is not None and not isinstance(model, Mapping):
        return model
    return merge(trained_config(path).tree(), model or {})


def _with_tokenizer(data: Any, path: str) -> Any:
    if not isinstance(data, Mapping) or data.get("kind") != "text":
        return data
    if data.get("tokenizer") is not None or data.get("prepared") is not None:
        return data
    file = tokenizer_file(path)
    return data if file is None else {**data, "tokenizer": {"kind": "file", "path": str(file)}}


def check_longer(cfg: RunConfig) -> None:
    """Raises ValueError for what the run's model or data cannot do on longer rows."""
    assert cfg.longer is not None
    if cfg.model.position_embedding is not None:
        raise ValueError("longer: the model has learned positions, which end where training did")
    if cfg.longer.train_steps is not None and cfg.longer.train_factor not in cfg.longer.factors:
        raise ValueError(
            f"longer.train_factor: {cfg.longer.train_factor} is not among longer.factors"
        )
    for factor in cfg.longer.factors:
        longer_data(cfg.data, factor)
        for method in {*cfg.longer.methods, *cfg.longer.train_methods} - {"none"}:
            scaled(cfg.model, method, factor, cfg.data.seq_len)
