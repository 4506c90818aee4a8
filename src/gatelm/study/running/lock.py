"""One `study run` at a time in a folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gatelm.config.base import ConfigError


@contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Hold the folder; the system lets go of it however this process ends.

    Raises:
        ConfigError: when another process holds it.
    """
    with (root / ".lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise ConfigError(
                f"{root}: another study run is at work in this folder (process {holder}); "
                "wait for it, stop it, or choose another --out"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
