"""What a running study shows: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

if TYPE_CHECKING:
    from gatelm.study.planning.plan import Plan, PlannedRun
    from gatelm.study.running.worker import Step


class Display(Protocol):
    """Told by the scheduler, in its own thread, of everything that happens."""

    def start(
        self, plan: Plan, done: Collection[PlannedRun], workers: int, threads: int
    ) -> None: ...
    def begin(self, run: PlannedRun) -> None: ...
    def progress(self, run: PlannedRun, step: Step) -> None: ...
    def end(self, run: PlannedRun, status: str, error: str) -> None: ...
    def note(self, text: str) -> None: ...
    def stop(self) -> None: ...


def make_display(console: Console, expected: Mapping[PlannedRun, float] | None = None) -> Display:
    """The display for a terminal or a log; `expected` has the seconds that each run should take."""
    if console.is_terminal:
        return LiveDisplay(console, expected)
    return PlainDisplay(console.file, expected)


@dataclass
class _Running:
    since: float | None = None
    """When its first step had ended: the time before says nothing about steps."""
    first_step: int = 0
    share: float = 0.0


class Clock:
    """Remaining time, from what each run was expected to take and how that turned out.

    Without expectations the FLOPs of runs stand for them, the only unit that all share.
    """

    TRUST_SECONDS = 20.0
    """So many seconds of work count as if they had gone as expected."""

    def __init__(
        self,
        plan: Plan,
        done: Collection[PlannedRun],
        workers: int,
        expected: Mapping[PlannedRun, float] | None = None,
    ):
        self.began = time.monotonic()
        self.total = len(plan.runs)
        self.workers = max(workers, 1)
        self.trust = 0.0 if expected is None else self.TRUST_SECONDS
        work = expected or {run: max(float(run.flops), 1.0) for run in plan.runs}
        self.left = {run: work[run] for run in plan.runs if run not in set(done)}
        self.finished = 0.0
        self.running: dict[PlannedRun, _Running] = {}

    @property
    def runs_done(self) -> int:
        return self.total - len(self.left)

    def begin(self, run: PlannedRun) -> None:
        self.running[run] = _Running()

    def progress(self, run: PlannedRun, step: Step) -> float | None:
        """Seconds this run has left, once it has moved."""
        state = self.running[run]
        if state.since is None:
            if step.step > 0 and step.phase == "train":
                state.since, state.first_step = time.monotonic(), step.step
            return None
        state.share = step.step / max(step.total_steps, 1)
        moved = step.step - state.first_step
        if moved <= 0:
            return None
        return (time.monotonic() - state.since) / moved * (step.total_steps - step.step)

    def end(self, run: PlannedRun, completed: bool) -> None:
        state = self.running.pop(run, None)
        if state is not None and completed:
            self.finished += self.left.pop(run)

    def remaining(self) -> float | None:
        """Seconds until the last run ends."""
        partial = sum(self.left[r] * s.share for r, s in self.running.items() if r in self.left)
        computed = self.finished + partial
        if computed + self.trust <= 0:
            return None
        spent = (time.monotonic() - self.began) * self.workers
        slowness = (spent + self.trust) / (computed + self.trust)
        return slowness * (sum(self.left.values()) - partial) / self.workers


class PlainDisplay:
    """One line a start, an end, and now and then a running run: for logs."""

    EVERY_SECONDS = 30.0

    def __init__(self, stream: Any = None, expected: Mapping[PlannedRun, float] | None = None):
        self.stream, self.expected = stream, expected
        self.last: dict[PlannedRun, float] = {}

    def _line(self, text: str) -> None:
        print(text, file=self.stream or sys.stdout, flush=True)

    def start(self, plan: Plan, done: Collection[PlannedRun], workers: int, threads: int) -> None:
        self.clock = Clock(plan, done, workers, self.expected)
        self._line(opening(plan, len(done), workers, threads))

    def begin(self, run: PlannedRun) -> None:
        self.clock.begin(run)
        self.last[run] = time.monotonic()
        self._line(f"start    {run.label}")

    def progress(self, run: PlannedRun, step: Step) -> None:
        left = self.clock.progress(run, step)
        if time.monotonic() - self.last[run] >= self.EVERY_SECONDS:
            self.last[run] = time.monotonic()
            self._line(f"         {run.label}  " + "  ".join(_cells(step, left)))

    def end(self, run: PlannedRun, status: str, error: str) -> None:
        self.clock.end(run, status in ("finished", "diverged"))
        eta = clock_time(self.clock.remaining())
        tail = f": {error}" if error else ""
        done = f"{self.clock.runs_done} of {self.clock.total} runs done, ETA {eta}"
        self._line(f"{status:<8} {run.label}{tail}  [{done}]")

    def note(self, text: str) -> None:
        self._line(text)

    def stop(self) -> None:
        pass


class LiveDisplay:
    """A bar for the study and a line for every run in a worker."""

    def __init__(self, console: Console, expected: Mapping[PlannedRun, float] | None = None):
        self.console, self.expected = console, expected
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[cells]}", markup=False),
            console=console,
            transient=True,
            refresh_per_second=4,
        )
        self.tasks: dict[PlannedRun, TaskID] = {}

    def start(self, plan: Plan, done: Collection[PlannedRun], workers: int, threads: int) -> None:
        self.clock = Clock(plan, done, workers, self.expected)
        self.console.print(opening(plan, len(done), workers, threads), markup=False)
        self.overall = self.bars.add_task(plan.study.name, total=len(plan.runs), cells="")
        self._refresh()
        self.bars.start()

    def begin(self, run: PlannedRun) -> None:
        self.clock.begin(run)
        name = _shortened(run.label, self.console.width - 66)
        self.tasks[run] = self.bars.add_task(f"  {name}", total=1, cells="starting")

    def progress(self, run: PlannedRun, step: Step) -> None:
        left = self.clock.progress(run, step)
        self.bars.update(
            self.tasks[run],
            total=step.total_steps,
            completed=step.step,
            cells="  ".join(_cells(step, left)),
        )
        self._refresh()

    def end(self, run: PlannedRun, status: str, error: str) -> None:
        self.clock.end(run, status in ("finished", "diverged"))
        self.bars.remove_task(self.tasks.pop(run))
        style = {"finished": "green", "diverged": "yellow", "failed": "red"}.get(status, "")
        tail = f": {error}" if error else ""
        self.bars.console.print(
            f"{status:<10} {run.label}{tail}", style=style, markup=False, highlight=False
        )
        self._refresh()

    def note(self, text: str) -> None:
        self.bars.console.print(text, style="yellow", markup=False, highlight=False)

    def stop(self) -> None:
        self.bars.stop()

    def _refresh(self) -> None:
        shares = sum(s.share for s in self.clock.running.values())
        done = f"{self.clock.runs_done} of {self.clock.total} runs"
        self.bars.update(
            self.overall,
            completed=self.clock.runs_done + shares,
            cells=f"{done}  ETA {clock_time(self.clock.remaining())}",
        )


def opening(plan: Plan, done: int, workers: int, threads: int) -> str:
    total = len(plan.runs)
    if done == total:
        return f"{plan.study.name}: all {_runs(total)} done"
    resumed = f" ({done} of {total} are done)" if done else ""
    processes = f"{workers} at a time with {threads} thread{'' if threads == 1 else 's'} each"
    return f"{plan.study.name}: {_runs(total - done)} to train{resumed}, {processes}"


def _runs(number: int) -> str:
    return f"{number} run{'' if number == 1 else 's'}"


def clock_time(seconds: float | None) -> str:
    """`1:02:03` or `2:03`; `-:--` when unknown."""
    if seconds is None:
        return "-:--"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def _shortened(text: str, width: int) -> str:
    """The end of a label that is too long: the start is shared by its neighbours."""
    width = max(width, 16)
    return text if len(text) <= width else "..." + text[3 - width :]


def _cells(step: Step, left: float | None) -> list[str]:
    cells = [f"{step.step}/{step.total_steps}"]
    if step.phase != "train":
        cells.append(step.phase)
    if step.loss is not None:
        cells.append(f"loss {step.loss:.3f}")
    if step.tokens_per_second:
        cells.append(f"{step.tokens_per_second:,.0f} tok/s")
    return [*cells, f"ETA {clock_time(left)}"]
