"""How far a run is: a moving bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from rich import progress as bars
from rich.console import Console

Phase = Literal["data", "train", "eval", "health", "save", "analysis", "done"]


@dataclass(frozen=True)
class Progress:
    """A run's position, as reported at every step and phase."""

    step: int
    total_steps: int
    loss: float | None
    tokens_per_second: float | None
    phase: Phase


class ProgressDisplay:
    """Shows what `report` is given. The bar redraws itself; lines come every `line_seconds`."""

    def __init__(self, console: Console, name: str, line_seconds: float = 10.0) -> None:
        self._console, self._name, self._line_seconds = console, name, line_seconds
        self._last_line = float("-inf")
        self._bar: bars.Progress | None = None
        self._started: tuple[float, int] | None = None

    def __enter__(self) -> ProgressDisplay:
        if self._console.is_terminal:
            self._bar = bars.Progress(
                bars.TextColumn("{task.description}"),
                bars.BarColumn(),
                bars.MofNCompleteColumn(),
                bars.TextColumn("{task.fields[figures]}"),
                bars.TimeRemainingColumn(),
                console=self._console,
            )
            self._task = self._bar.add_task(self._name, total=None, figures="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def report(self, progress: Progress) -> None:
        """Take note of a run's position."""
        if self._bar is not None:
            if self._started is None and progress.phase == "train":
                self._started = (time.monotonic(), progress.step)
                self._bar.reset(self._task, completed=progress.step)
            self._bar.update(
                self._task,
                total=progress.total_steps,
                completed=progress.step,
                figures=_figures(progress),
            )
            return
        now = time.monotonic()
        if self._started is None and progress.phase == "train":
            # data, first validation and the first step's preparations say nothing about steps
            self._started = (now, progress.step)
        last = progress.phase == "done"
        if last or (progress.phase == "train" and now - self._last_line >= self._line_seconds):
            self._last_line = now
            self._console.print(self._line(progress, now), highlight=False, soft_wrap=True)

    def _line(self, progress: Progress, now: float) -> str:
        parts = [f"{self._name}: step {progress.step}/{progress.total_steps}", _figures(progress)]
        if self._started is not None and progress.phase != "done":
            since, first = self._started
            if progress.step > first:
                pace = (now - since) / (progress.step - first)
                parts.append(f"{duration(pace * (progress.total_steps - progress.step))} left")
        return ", ".join(part for part in parts if part)


def _figures(progress: Progress) -> str:
    parts = [] if progress.loss is None else [f"loss {progress.loss:.3f}"]
    if progress.tokens_per_second:
        parts.append(f"{progress.tokens_per_second:,.0f} tokens/s")
    if progress.phase not in ("train", "done"):
        parts.append(progress.phase)
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """`1:02:03`: hours, minutes, seconds."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
