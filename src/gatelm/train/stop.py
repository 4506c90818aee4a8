"""SIGINT and SIGTERM as a wish to stop after the current step."""

from __future__ import annotations

import signal
from types import FrameType


class StopSignals:
    """Within its body the first signal is only remembered; the second one ends the process.

    with StopSignals() as stop:
        train(cfg, folder, should_stop=stop.requested)
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self._received = False

    def requested(self) -> bool:
        """Whether a signal has come."""
        return self._received

    def __enter__(self) -> StopSignals:
        self._previous = {number: signal.signal(number, self._receive) for number in self.SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
