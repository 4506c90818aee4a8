"""Signals that ask a process to stop, and the exit status that reports them."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from types import FrameType
from typing import Literal

STOPPING = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Signals of Ctrl-C, of a system or scheduler, and of a closed terminal or connection."""


class StopSignals:
    """Context that notes the signals of `STOPPING`; ignored ones (nohup) stay ignored.

    with StopSignals() as stop:
        train(cfg, folder, should_stop=stop.requested)
    sys.exit(stop.exit_status)

    second: what a second signal does: "ends" the process as it would without this class, or is
    "noted" too. A closed terminal often sends SIGHUP twice, so a second SIGHUP is ignored.
    """

    def __init__(self, second: Literal["ends", "noted"] = "ends") -> None:
        self._second = second
        self.received: list[signal.Signals] = []
        self._previous: dict[int, object] = {}

    def requested(self) -> bool:
        """Whether a signal has come."""
        return bool(self.received)

    @property
    def exit_status(self) -> int:
        """128 and the number of the first signal, as shells count; 0 without one."""
        return 128 + self.received[0] if self.received else 0

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in STOPPING:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received.append(signal.Signals(number))
        if signal.Signals(number).name == "SIGHUP":
            leave_terminal()
            signal.signal(number, signal.SIG_IGN)
        if self._second == "ends":
            self._restore(but=number if signal.Signals(number).name == "SIGHUP" else None)

    def _restore(self, but: int | None = None) -> None:
        for number, handler in self._previous.items():
            if number != but:
                signal.signal(number, handler)  # pyright: ignore[reportArgumentType]


def leave_terminal() -> None:
    """Discard what is printed to a terminal: writing to a closed one is an error."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (sys.__stdin__, sys.__stdout__, sys.__stderr__):
        try:
            if stream is not None and stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
                os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):  # closed already
            continue
    os.close(nowhere)
