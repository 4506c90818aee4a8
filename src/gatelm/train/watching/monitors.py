"""Monitors of training: spikes of loss and gradient norm, and the speed."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class SpikeMonitor:
    """Monitor that flags values with value > mean + `threshold_std` * std of recent ones.

    Mean and population standard deviation are over the last `window_steps` values that entered the
    window, and nothing is flagged before the window is full (the rule of OLMo-core's stability
    monitor, whose defaults are 128 and 6). A non-finite value is always a spike and never enters
    the window, so one NaN does not blind the monitor.
    """

    def __init__(self, window_steps: int = 128, threshold_std: float = 6.0) -> None:
        self.threshold_std = threshold_std
        self.window: deque[float] = deque(maxlen=window_steps)
        self.spikes = 0
        self.seen = 0

    def is_spike(self, value: float) -> bool:
        """Whether `value` would be flagged, without changing anything."""
        if not math.isfinite(value):
            return True
        if len(self.window) < (self.window.maxlen or 0):
            return False
        mean = math.fsum(self.window) / len(self.window)
        variance = math.fsum((x - mean) ** 2 for x in self.window) / len(self.window)
        return value > mean + self.threshold_std * math.sqrt(variance)

    def add(self, value: float, *, accept: bool = True) -> bool:
        """Count `value`, put it in the window if it is finite and accepted; True for a spike."""
        spike = self.is_spike(value)
        self.seen += 1
        self.spikes += spike
        if accept and math.isfinite(value):
            self.window.append(value)
        return spike

    @property
    def score(self) -> float:
        """Number of spikes per value seen."""
        return self.spikes / self.seen if self.seen else 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return everything on which the next decision depends, as plain data."""
        return {"window": list(self.window), "spikes": self.spikes, "seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the monitor from `state_dict()`."""
        self.window = deque(state["window"], maxlen=self.window.maxlen)
        self.spikes = int(state["spikes"])
        self.seen = int(state["seen"])


class Throughput:
    """Tokens per second of training, without the time spent in evaluation or saving.

    `training_seconds` continues over a resume; the rate is over the time since the last `lap()`.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since = clock()
        self._lap_seconds = 0.0
        self._lap_tokens = 0
        self._total_seconds = 0.0
        self._rate: float | None = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the body's time."""
        self._advance()
        try:
            yield
        finally:
            self._since = self._clock()

    def add_tokens(self, tokens: int) -> None:
        """Count the tokens of a finished step."""
        self._lap_tokens += tokens

    def lap(self) -> float:
        """Return tokens per second since the last call, and start the next lap."""
        self._rate = self.rate or 0.0
        self._lap_seconds, self._lap_tokens = 0.0, 0
        return self._rate

    @property
    def rate(self) -> float | None:
        """Tokens per second in this lap so far; of the last lap if this one has no step."""
        self._advance()
        if self._lap_tokens and self._lap_seconds > 0:
            return self._lap_tokens / self._lap_seconds
        return self._rate

    @property
    def training_seconds(self) -> float:
        """Seconds of training in the whole run."""
        self._advance()
        return self._total_seconds

    def state_dict(self) -> dict[str, float]:
        """Return the state that survives a resume."""
        return {"training_seconds": self.training_seconds}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore the state from `state_dict()`, and start the clock now."""
        self._since = self._clock()
        self._lap_seconds, self._lap_tokens = 0.0, 0
        self._total_seconds = float(state["training_seconds"])

    def _advance(self) -> None:
        now = self._clock()
        self._lap_seconds += now - self._since
        self._total_seconds += now - self._since
        self._since = now
