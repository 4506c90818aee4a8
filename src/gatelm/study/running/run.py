"""Training of a plan's runs in worker processes; finished runs stay, begun runs resume."""

from __future__ import annotations

import pickle
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from gatelm.config.load import dump
from gatelm.io.files import write_text
from gatelm.io.folders import refuse_foreign
from gatelm.io.locks import exclusive
from gatelm.io.signals import STOPPING, StopSignals
from gatelm.study.planning.plan import Plan, PlannedRun
from gatelm.study.running.folder import FAILURE, read_state
from gatelm.study.running.progress import PlainDisplay
from gatelm.study.running.resources import Resources, share
from gatelm.study.running.reuse import take_over
from gatelm.study.running.worker import STOP, Ended, Step, WorkerTask, work

COMMAND, RECIPE = "command.txt", "study.yaml"
TRAINER = "gatelm.train.trainer:train"
_POLL_SECONDS = 0.2


@dataclass
class Outcome:
    """Outcome of `run`: runs by state, and whether it was stopped before its end."""

    finished: list[PlannedRun] = field(default_factory=list)
    diverged: list[PlannedRun] = field(default_factory=list)
    failed: dict[PlannedRun, str] = field(default_factory=dict)
    unfinished: list[PlannedRun] = field(default_factory=list)
    stopped_by: signal.Signals | None = None


def run(
    plan: Plan,
    root: Path,
    *,
    workers: int | None = None,
    reuse: Iterable[Path] = (),
    command: str = "",
    trainer: str = TRAINER,
    display: PlainDisplay | None = None,
) -> Outcome:
    """Train everything in `plan` that has no result yet, below `root`.

    A run that raises, or whose process dies, is recorded as failed and the rest goes on; the next
    call tries it again. SIGINT, SIGTERM or SIGHUP lets every run save a checkpoint and ends the
    call; a second one ends it at once. Results of equal runs are copied from the studies in
    `reuse` first (see `study.running.reuse.take_over`). `trainer` is `module:function` with the
    signature of `gatelm.train.trainer.train`.

    Raises:
        ConfigError: when another process is at work in `root`, or nothing can be reused.
    """
    resources = share(plan, workers)
    refuse_foreign(root, "a study", COMMAND, (RECIPE, "results.json", "results.csv", "report.html"))
    with exclusive(root, "running a study"):
        write_text(root / COMMAND, command + "\n")
        write_text(root / RECIPE, dump(plan.study.tree()))
        display = display or PlainDisplay()
        taken = take_over(plan, root, reuse)
        if taken:
            display.note(f"taken over from other studies: {len(taken)} of {len(plan.runs)} runs")
        return _Scheduler(plan, root, trainer, resources, display).run()


class _Worker:
    """A worker process and its current run."""

    def __init__(self, trainer: str):
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=work, args=(theirs, trainer))
        with _signals_blocked():
            self.process.start()
        theirs.close()
        self.run: PlannedRun | None = None

    def send(self, message: WorkerTask | str) -> None:
        with suppress(OSError):  # it has died: its closed connection reports that
            self.connection.send(message)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


class _Scheduler:
    def __init__(
        self, plan: Plan, root: Path, trainer: str, resources: Resources, display: PlainDisplay
    ):
        self.plan, self.root, self.trainer = plan, root, trainer
        self.count, self.threads, self.display = resources.workers, resources.threads, display
        self.workers: list[_Worker] = []
        self.signals = StopSignals(second="noted")
        self.stopping = False
        self.pending: deque[PlannedRun] = deque()
        self.errors: dict[PlannedRun, str] = {}

    def run(self) -> Outcome:
        states = {r: read_state(self.root, r) for r in self.plan.runs}
        todo = [r for r in self.plan.runs if not states[r].done]
        # the longest first, so that the workers end together; seed by seed within the same length
        self.pending.extend(sorted(todo, key=lambda r: (-r.flops, r.seed)))
        done = [r for r in self.plan.runs if states[r].done]
        self.display.start(self.plan, done, min(self.count, len(todo)), self.threads)
        try:
            with self.signals:
                self._loop()
        finally:
            for worker in self.workers:  # idle, with everything on disk, or told to stop at once
                worker.kill()
            self.display.stop()
        return self._outcome()

    def _loop(self) -> None:
        while self.pending or any(w.run for w in self.workers):
            if self.signals.requested() and not self.stopping:
                self._begin_stop()
            if len(self.signals.received) > 1:
                return
            self._assign()
            connections = [w.connection for w in self.workers]
            for ready in wait(connections, timeout=_POLL_SECONDS):
                self._receive(next(w for w in self.workers if w.connection is ready))

    def _begin_stop(self) -> None:
        self.stopping = True
        self.pending.clear()
        for worker in self.workers:
            worker.send(STOP)
        self.display.note(
            f"{self.signals.received[0].name}: saving checkpoints; once more stops at once"
        )

    def _assign(self) -> None:
        while self.pending:
            worker = next((w for w in self.workers if w.run is None), None)
            if worker is None:
                if len(self.workers) >= self.count:
                    return
                worker = _Worker(self.trainer)
                self.workers.append(worker)
            worker.run = run = self.pending.popleft()
            (self.root / run.folder / FAILURE).unlink(missing_ok=True)
            self.display.begin(run)
            worker.send(self._task(run))

    def _task(self, run: PlannedRun) -> WorkerTask:
        config = run.config
        if config.train.threads is None:
            config = config.replace(train=config.train.replace(threads=self.threads))
        return WorkerTask(self.plan.runs.index(run), pickle.dumps(config), self.root / run.folder)

    def _receive(self, worker: _Worker) -> None:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            self._died(worker)
            return
        run = self.plan.runs[message.index]
        if isinstance(message, Step):
            self.display.progress(run, message.progress)
        elif isinstance(message, Ended):
            worker.run = None
            self._end(run, message.error, message.details)

    def _died(self, worker: _Worker) -> None:
        worker.kill()
        self.workers.remove(worker)
        run, worker.run = worker.run, None
        if run is not None:
            self._end(run, _death(worker.process.exitcode), "")

    def _end(self, run: PlannedRun, error: str | None, details: str) -> None:
        state = read_state(self.root, run)
        if state.done or error is None:
            self.display.end(run, state.status, "")
            return
        self.errors[run] = error
        folder = self.root / run.folder
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / FAILURE, f"{error}\n\n{details}".rstrip() + "\n")
        self.display.end(run, "failed", error)

    def _outcome(self) -> Outcome:
        outcome = Outcome()
        outcome.stopped_by = self.signals.received[0] if self.signals.requested() else None
        for run in self.plan.runs:
            status = read_state(self.root, run).status
            if status == "failed":
                outcome.failed[run] = self.errors.get(run, "")
            else:
                getattr(outcome, status).append(run)
        return outcome


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Start processes with signals blocked, until their own handlers are set."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _death(exitcode: int | None) -> str:
    if exitcode is None or exitcode >= 0:
        return f"its process ended unexpectedly (exit status {exitcode})"
    hint = "; often the machine has run out of memory" if exitcode == -signal.SIGKILL else ""
    return f"its process was killed by {signal.Signals(-exitcode).name}{hint}"
