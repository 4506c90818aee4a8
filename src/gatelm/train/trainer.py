"""One run under way: step, log, evaluate, look, save, stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from gatelm.data.source import Source
from gatelm.nn.count import count
from gatelm.nn.model import Decoder
from gatelm.optim.schedule import lr
from gatelm.train.config import RunConfig
from gatelm.train.evaluate import evaluate, health_metrics
from gatelm.train.finish import finish
from gatelm.train.parallel import World
from gatelm.train.saving import checkpoint
from gatelm.train.saving.folder import RunFolder, RunResult
from gatelm.train.saving.rng import preserved_rng
from gatelm.train.saving.state import TrainState
from gatelm.train.step import StepOutcome, train_step
from gatelm.train.watching.metrics import MetricsLog
from gatelm.train.watching.progress import Phase, Progress


class Run:
    """A run under way in one process."""

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
        """Train to the end, or to a stop."""
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
            rate = lr(optim, state.step, cfg.total_steps)
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
        """Validation and health pass where they are due; the last ones belong to the end."""
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
        """What happens in the body costs no training time and no random numbers."""
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
