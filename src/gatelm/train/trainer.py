"""Train one run, from top to bottom: set up, step, log, evaluate, save, stop, finish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from gatelm.data.source import Source, build_source
from gatelm.io.locks import exclusive
from gatelm.nn.count import count
from gatelm.nn.model import Decoder
from gatelm.train.config import RunConfig
from gatelm.train.evaluate import evaluate, health_metrics
from gatelm.train.finish import finish
from gatelm.train.parallel import World, world
from gatelm.train.saving import checkpoint
from gatelm.train.saving.folder import Resume, RunFolder, RunResult
from gatelm.train.saving.rng import preserved_rng, seed_all
from gatelm.train.saving.state import TrainState
from gatelm.train.setup import (
    check_share,
    configure_torch,
    new_state,
    restore,
    with_chosen_precision,
)
from gatelm.train.start import model_folder
from gatelm.train.step import StepOutcome, train_step
from gatelm.train.watching.metrics import MetricsLog
from gatelm.train.watching.progress import Phase, Progress

__all__ = ["Progress", "RunResult", "Trainer", "train"]


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
        configure_torch(cfg.train)
        check_share(cfg.train, processes)
        cfg = processes.from_main(
            with_chosen_precision(cfg, run_folder) if processes.is_main else None
        )
        situation = run_folder.situation(cfg, resume) if processes.is_main else None
        if processes.from_main(situation) == "finished":
            return run_folder.read_result()
        if cfg.init_from is not None:
            model_folder(cfg.init_from.path)
        preparing = Progress(0, cfg.train.total_steps, None, None, "data")
        source = build_source(cfg.data, cfg.seed, report=lambda _: report(preparing))
        state = new_state(cfg, source, processes)
        if processes.is_main:
            stack.enter_context(exclusive(run_folder.path, "training"))
        seed_all(cfg.seed, processes.rank)
        damage = restore(state, cfg.train.total_steps, run_folder, resume, processes)
        metrics = None
        if processes.is_main:
            run_folder.open(cfg, processes=processes.size, threads=torch.get_num_threads())
            keep = state.step if damage is not None else -1
            metrics = stack.enter_context(MetricsLog(run_folder.metrics, keep_through_step=keep))
            for sentence in damage or ():
                metrics.write("event", state.step, what="damaged checkpoint", detail=sentence)
        trainer = Trainer(cfg, source, state, processes, run_folder, metrics, report)
        return trainer.go(should_stop, resumed=damage is not None)


class Trainer:
    """A run under way in one of its processes. `go` trains it; methods follow in its order."""

    def __init__(
        self,
        cfg: RunConfig,
        source: Source,
        state: TrainState,
        processes: World,
        folder: RunFolder,
        metrics: MetricsLog | None,
        report: Callable[[Progress], None],
    ) -> None:
        self.cfg, self.source, self.state, self.world = cfg, source, state, processes
        self.folder, self._metrics, self._report = folder, metrics, report
        self._loss: float | None = None

    def go(self, should_stop: Callable[[], bool], *, resumed: bool) -> RunResult:
        """Train to the end, to a stop, or until the run diverges; then write what is due.

        Args:
            should_stop: asked before every step.
            resumed: whether `state` comes from a checkpoint.
        """
        if resumed:
            self._event("resumed", f"from step {self.state.step}")
        else:
            self._look_around()
        status = self._train(should_stop)
        metrics: dict[str, float] = {}
        if status == "stopped" or (status == "finished" and self.cfg.train.checkpoint_every_steps):
            self._save()
        if status == "finished":
            metrics = self._finish()
        result = self._result(status, metrics)
        if status != "stopped" and self.world.is_main:
            self.folder.write_result(result)
        self._show("done")
        return result

    def _train(self, should_stop: Callable[[], bool]) -> Literal["finished", "diverged", "stopped"]:
        cfg, state, optim = self.cfg.train, self.state, self.cfg.optim
        state.model.train()
        while state.step < cfg.total_steps:
            if self.world.any(should_stop() or state.step == cfg.stop_at_step):
                return "stopped"
            batch = self.source.batch(
                state.step,
                batch_size=cfg.batch_size,
                rank=self.world.rank,
                world_size=self.world.size,
            )
            rate = optim.lr_at(state.step, cfg.total_steps)
            outcome = train_step(
                state, batch, lr=rate, grad_clip=optim.grad_clip, cfg=cfg, world=self.world
            )
            self._log(outcome, rate)
            if outcome.status == "diverged":
                return "diverged"
            self._look_around()
            if _due(state.step, cfg.checkpoint_every_steps) and state.step < cfg.total_steps:
                self._save()
        return "finished"

    def _log(self, outcome: StepOutcome, rate: float) -> None:
        state = self.state
        self._loss = outcome.loss
        if outcome.spike is not None:
            self._event(outcome.status if outcome.status != "updated" else "spike", outcome.spike)
        if outcome.status == "diverged" or _due(state.step, self.cfg.train.log_every_steps):
            self._record(
                "train",
                tokens=state.tokens,
                loss=outcome.loss,
                lr=rate,
                grad_norm=outcome.grad_norm,
                tokens_per_second=state.throughput.lap(),
                seconds=state.throughput.training_seconds,
                **(outcome.routing or {}),
            )
        self._show("train")

    def _look_around(self) -> None:
        """Run the validation and health pass if they are due; the last ones belong to the end."""
        cfg, step = self.cfg.train, self.state.step
        if step == cfg.total_steps:
            return
        if _due(step, cfg.eval_every_steps):
            self._evaluate()
        if _due(step, cfg.health_every_steps):
            self._show("health")
            with self._apart():
                if self.world.is_main:
                    self._record("health", **health_metrics(self.state.model, self.source, cfg))

    def _evaluate(self) -> None:
        self._show("eval")
        with self._apart():
            values = evaluate(self.state.model, self.source, self.cfg.train, self.world)
        self._record("eval", **values)

    def _finish(self) -> dict[str, float]:
        self._show("analysis")
        metrics: dict[str, float] = {}
        if self.world.is_main:
            with self._apart():
                metrics = finish(self.cfg, self.source, self.state, self.folder)
            validation = ("val_loss", "val_bits_per_byte")
            self._record("eval", **{name: metrics[name] for name in validation if name in metrics})
        return self.world.from_main(metrics)

    def _save(self) -> None:
        self._show("save")
        with self.state.throughput.paused():
            state = self.state.to_json(self.world)
            if self.world.is_main:
                checkpoint.save(
                    self.folder.checkpoints,
                    self.state.step,
                    self.state.tensors(),
                    state,
                    keep=self.cfg.train.keep_checkpoints,
                )

    def _result(
        self, status: Literal["finished", "diverged", "stopped"], metrics: dict[str, float]
    ) -> RunResult:
        assert isinstance(self.state.model, Decoder)
        parameters = count(self.state.model.cfg)
        return RunResult(
            status=status,
            folder=self.folder.path,
            config_hash=self.state.config_hash,
            steps=self.state.step,
            tokens=self.state.tokens,
            seconds=self.state.throughput.training_seconds,
            parameters=parameters.total,
            gate_parameters=parameters.gate,
            precision=self.cfg.train.precision,
            metrics=dict(metrics),
            training={
                "loss_spike_score": self.state.loss_spikes.score,
                "grad_norm_spike_score": self.state.grad_spikes.score,
                "tokens_per_second": self.state.tokens_per_second,
            },
        )

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Run the body without cost in training time or random numbers."""
        with self.state.throughput.paused(), preserved_rng(self.world.device):
            yield

    def _event(self, what: str, detail: str) -> None:
        self._record("event", what=what, detail=detail)

    def _record(self, kind: str, **values: Any) -> None:
        if self._metrics is not None:
            self._metrics.write(kind, self.state.step, **values)

    def _show(self, phase: Phase) -> None:
        if self.world.is_main:
            rate = self.state.throughput.rate
            total = self.cfg.train.total_steps
            self._report(Progress(self.state.step, total, self._loss, rate, phase))


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
