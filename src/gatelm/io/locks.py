"""Locks on files: one process at a time. The system lets go of them however a process ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gatelm.config import ConfigError


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold the folder `path`, which is made where it is missing, for the body's time.

    Args:
        what: what the process that holds it is doing, such as "training".

    Raises:
        ConfigError: when another process holds the folder.
    """

    def refuse(holder: str) -> None:
        raise ConfigError(
            f"{path}: another process is {what} in this folder (process {holder}); wait for it, "
            "or choose another folder"
        )

    path.mkdir(parents=True, exist_ok=True)
    with locked(path / ".lock", when_held=refuse):
        yield


@contextmanager
def locked(file: Path, *, when_held: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock file, which is made where it is missing, for the body's time.

    Without POSIX locks, as on Windows, nothing is held.

    Args:
        when_held: called with the number of the process that holds the file, if one does. It
            raises, or returns to wait for the file.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with file.open("a+", encoding="utf-8") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            opened.seek(0)
            when_held(opened.read().strip() or "unknown")
            fcntl.flock(opened, fcntl.LOCK_EX)
        opened.truncate(0)
        opened.write(str(os.getpid()))
        opened.flush()
        yield
