"""The display of a running study: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich import progress as bars
from rich.console import Console

if TYPE_CHECKING:
    from gatelm.study.planning.plan import Plan, PlannedRun
    from gatelm.train.watching.progress import Progress


def make_display(
    console: Console, expected: Mapping[PlannedRun, float] | None = None
) -> PlainDisplay:
    """Make the display for a terminal or a log; `expected`: seconds that each run should take."""
    if console.is_terminal:
        return LiveDisplay(console, expected)
    return PlainDisplay(console.file, expected)


@dataclass
class _Running:
    since: float | None = None
    """Time at which the first step ended; time before it says nothing about steps."""
    first_step: int = 0
    share: float = 0.0


class Clock:
    """Clock of the remaining time, from each run's expected and actual times.

    Without expectations the FLOPs of runs stand for them, the only unit that all share.
    """

    TRUST_SECONDS = 20.0
    """Seconds of work that are counted as if they had gone as expected."""

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
        """Number of runs that have a result."""
        return self.total - len(self.left)

    def begin(self, run: PlannedRun) -> None:
        """Note that a worker begins the run."""
        self.running[run] = _Running()

    def progress(self, run: PlannedRun, at: Progress) -> float | None:
        """Note the run's progress, and return its remaining seconds once a step is done."""
        state = self.running[run]
        if state.since is None:
            if at.step > 0 and at.phase == "train":
                state.since, state.first_step = time.monotonic(), at.step
            return None
        state.share = at.step / max(at.total_steps, 1)
        moved = at.step - state.first_step
        if moved <= 0:
            return None
        return (time.monotonic() - state.since) / moved * (at.total_steps - at.step)

    def end(self, run: PlannedRun, completed: bool) -> None:
        """Note that the run has left its worker, with a result if it `completed`."""
        state = self.running.pop(run, None)
        if state is not None and completed:
            self.finished += self.left.pop(run)

    def remaining(self) -> float | None:
        """Return the seconds until the last run ends."""
        partial = sum(self.left[r] * s.share for r, s in self.running.items() if r in self.left)
        computed = self.finished + partial
        if computed + self.trust <= 0:
            return None
        spent = (time.monotonic() - self.began) * self.workers
        slowness = (spent + self.trust) / (computed + self.trust)
        return slowness * (sum(self.left.values()) - partial) / self.workers


class PlainDisplay:
    """Display for logs: a line per start, per end, and now and then per running run.

    The scheduler tells it, in its own thread, of everything that happens.
    """

    EVERY_SECONDS = 30.0

    def __init__(self, stream: Any = None, expected: Mapping[PlannedRun, float] | None = None):
        self.stream, self.expected = stream, expected
        self.last: dict[PlannedRun, float] = {}

    def _line(self, text: str, style: str = "") -> None:
        print(text, file=self.stream or sys.stdout, flush=True)

    def start(self, plan: Plan, done: Collection[PlannedRun], workers: int, threads: int) -> None:
        """Show that training begins: `workers` runs at a time, `threads` CPU threads each."""
        self.clock = Clock(plan, done, workers, self.expected)
        self._line(opening(plan, len(done), workers, threads))

    def begin(self, run: PlannedRun) -> None:
        """Show that a worker has taken the run."""
        self.clock.begin(run)
        self.last[run] = time.monotonic()
        self._line(f"start    {run.label}")

    def progress(self, run: PlannedRun, at: Progress) -> None:
        """Show the run's progress."""
        left = self.clock.progress(run, at)
        if time.monotonic() - self.last[run] >= self.EVERY_SECONDS:
            self.last[run] = time.monotonic()
            self._line(f"         {run.label}  {_figures(at, left)}")

    def end(self, run: PlannedRun, status: str, error: str) -> None:
        """Show that the run has left its worker; `error` says why if it failed."""
        self.clock.end(run, status in ("finished", "diverged"))
        tail = f": {error}" if error else ""
        done = f"{self.clock.runs_done} of {self.clock.total} runs done"
        eta = clock_time(self.clock.remaining())
        self._line(f"{status:<8} {run.label}{tail}  [{done}, ETA {eta}]")

    def note(self, text: str) -> None:
        """Show a note that concerns no single run."""
        self._line(text, "yellow")

    def stop(self) -> None:
        """Show that training has ended."""


class LiveDisplay(PlainDisplay):
    """Display for terminals: a bar for the study and a line for every run in a worker."""

    def __init__(self, console: Console, expected: Mapping[PlannedRun, float] | None = None):
        super().__init__(None, expected)
        self.console = console
        self.bars = bars.Progress(
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(bar_width=16),
            bars.TextColumn("{task.fields[cells]}", markup=False),
            console=console,
            transient=True,
            refresh_per_second=4,
        )
        self.tasks: dict[PlannedRun, bars.TaskID] = {}

    def _line(self, text: str, style: str = "") -> None:
        self.bars.console.print(text, style=style, markup=False, highlight=False)

    def start(self, plan: Plan, done: Collection[PlannedRun], workers: int, threads: int) -> None:
        """See `PlainDisplay.start`."""
        super().start(plan, done, workers, threads)
        self.overall = self.bars.add_task(plan.study.name, total=len(plan.runs), cells="")
        self._refresh()
        self.bars.start()

    def begin(self, run: PlannedRun) -> None:
        """See `PlainDisplay.begin`."""
        self.clock.begin(run)
        name = _shortened(run.label, self.console.width - 66)
        self.tasks[run] = self.bars.add_task(f"  {name}", total=1, cells="starting")

    def progress(self, run: PlannedRun, at: Progress) -> None:
        """See `PlainDisplay.progress`."""
        cells = _figures(at, self.clock.progress(run, at))
        self.bars.update(self.tasks[run], total=at.total_steps, completed=at.step, cells=cells)
        self._refresh()

    def end(self, run: PlannedRun, status: str, error: str) -> None:
        """See `PlainDisplay.end`."""
        self.clock.end(run, status in ("finished", "diverged"))
        self.bars.remove_task(self.tasks.pop(run))
        style = {"finished": "green", "diverged": "yellow", "failed": "red"}.get(status, "")
        self._line(f"{status:<10} {run.label}{f': {error}' if error else ''}", style)
        self._refresh()

    def stop(self) -> None:
        """See `PlainDisplay.stop`."""
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
    """Say in a line what a study will train."""
    total = len(plan.runs)
    if done == total:
        return f"{plan.study.name}: all {_runs(total)} done"
    resumed = f" ({done} of {total} are done)" if done else ""
    processes = f"{workers} at a time with {threads} thread{'' if threads == 1 else 's'} each"
    return f"{plan.study.name}: {_runs(total - done)} to train{resumed}, {processes}"


def _runs(number: int) -> str:
    return f"{number} run{'' if number == 1 else 's'}"


def clock_time(seconds: float | None) -> str:
    """Format seconds as `1:02:03` or `2:03`; `-:--` if unknown."""
    if seconds is None:
        return "-:--"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def _shortened(text: str, width: int) -> str:
    """Shorten a long label to its end, since its start is shared by its neighbours."""
    width = max(width, 16)
    return text if len(text) <= width else "..." + text[3 - width :]


def _figures(at: Progress, left: float | None) -> str:
    cells = [f"{at.step}/{at.total_steps}"]
    if at.phase != "train":
        cells.append(at.phase)
    if at.loss is not None:
        cells.append(f"loss {at.loss:.3f}")
    if at.tokens_per_second:
        cells.append(f"{at.tokens_per_second:,.0f} tok/s")
    return "  ".join([*cells, f"ETA {clock_time(left)}"])
