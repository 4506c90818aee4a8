"""The progress of a command on stderr: moving bars on a terminal, elsewhere lines."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from gatelm.cli.output import echo

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn, TaskID

    from gatelm.data.prepare import PrepareProgress
    from gatelm.train.watching.progress import Progress

LINE_SECONDS = 10.0
PREPARING = {
    "waiting": "waiting for another process that prepares the same",
    "tokenizer": "training the tokenizer",
    "tokens": "writing tokens",
}


def say(text: str) -> None:
    """Print on stderr what the command does now."""
    echo(f"{text} ...", err=True)


class Bars:
    """Progress bars with the time left, one per counted thing; none without a terminal."""

    def __init__(
        self,
        console: Console | None = None,
        *,
        counts: Literal["things", "bytes"] = "things",
        with_figures: bool = False,
        indent: str = "",
        line_seconds: float = LINE_SECONDS,
    ) -> None:
        from rich import progress as rich

        from gatelm.cli.console import Console

        self.console = console or Console(stderr=True)
        count = rich.MofNCompleteColumn() if counts == "things" else rich.DownloadColumn()
        figures = [rich.TextColumn("{task.fields[figures]}")] if with_figures else []
        columns: list[ProgressColumn] = [
            rich.TextColumn(indent + "{task.description}"),
            rich.BarColumn(),
            count,
            *figures,
            rich.TimeRemainingColumn(),
        ]
        self._bars = rich.Progress(
            *columns,
            console=self.console,
            disable=not self.console.is_terminal,
            transient=counts == "bytes",
        )
        self._tasks: dict[str, TaskID] = {}
        self._line_seconds, self._last_line = line_seconds, float("-inf")

    def __enter__(self) -> Bars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    @property
    def moving(self) -> bool:
        """Whether bars are shown; if not, a command prints lines."""
        return self.console.is_terminal

    def show(self, what: str, done: int, total: int | None, figures: str = "") -> None:
        """Move the bar of `what`, and make it first if there is none."""
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total, figures=figures)
        self._bars.update(self._tasks[what], completed=done, total=total, figures=figures)

    def restart(self, what: str, done: int) -> None:
        """Begin to measure the speed of `what` anew."""
        self._bars.reset(self._tasks[what], completed=done)

    def remove_all(self) -> None:
        """Remove all bars."""
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks.clear()

    def line_is_due(self, now: float) -> bool:
        """Whether `line_seconds` have passed since the last call that returned True."""
        if now - self._last_line < self._line_seconds:
            return False
        self._last_line = now
        return True


class RunDisplay(Bars):
    """Display of a training run: a bar, or a line every `line_seconds` and at the end."""

    def __init__(self, console: Console, name: str, line_seconds: float = LINE_SECONDS) -> None:
        super().__init__(console, with_figures=True, line_seconds=line_seconds)
        self._name = name
        self._started: tuple[float, int] | None = None

    def __enter__(self) -> RunDisplay:
        self.show(self._name, 0, None)
        super().__enter__()
        return self

    def report(self, progress: Progress) -> None:
        """Show a run's position."""
        now = time.monotonic()
        if self._started is None and progress.phase == "train":
            # data, first validation and the first step's preparations say nothing about steps
            self._started = (now, progress.step)
            self.restart(self._name, progress.step)
        if self.moving:
            self.show(self._name, progress.step, progress.total_steps, _figures(progress))
        elif progress.phase == "done" or (progress.phase == "train" and self.line_is_due(now)):
            self.console.print(self._line(progress, now), highlight=False, soft_wrap=True)

    def _line(self, progress: Progress, now: float) -> str:
        parts = [f"{self._name}: step {progress.step}/{progress.total_steps}", _figures(progress)]
        if self._started is not None and progress.phase != "done":
            since, first = self._started
            if progress.step > first:
                pace = (now - since) / (progress.step - first)
                parts.append(f"{duration(pace * (progress.total_steps - progress.step))} left")
        return ", ".join(part for part in parts if part)


def preparing(bars: Bars) -> Callable[[PrepareProgress], None]:
    """Return a function that shows the phases of preparing a corpus as bars, or by name."""
    begun: list[str] = []

    def report(progress: PrepareProgress) -> None:
        name = PREPARING[progress.phase]
        if begun[-1:] != [name]:
            begun.append(name)
            bars.remove_all()
            if not bars.moving:
                bars.console.print(name)
        bars.show(name, progress.num_bytes, progress.total_bytes or None)

    return report


def _figures(progress: Progress) -> str:
    parts = [] if progress.loss is None else [f"loss {progress.loss:.3f}"]
    if progress.tokens_per_second:
        parts.append(f"{progress.tokens_per_second:,.0f} tokens/s")
    if progress.phase not in ("train", "done"):
        parts.append(progress.phase)
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Format seconds as hours, minutes and seconds: `1:02:03`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
