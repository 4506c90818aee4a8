"""Folders that a command writes: never over files of others, and whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gatelm.config import ConfigError
from gatelm.io.files import sync, writing

_UNFINISHED = "unfinished"


def refuse_foreign(folder: Path, kind: str, marker: str, names: Iterable[str]) -> None:
    """Check that a command may write `names` (globs) into a folder, before it does any work.

    Args:
        kind: what the command writes, such as "a run".
        marker: the file that only this command writes, and writes first; with it the folder is
            one that an earlier call made.

    Raises:
        ConfigError: when the folder is a file, or holds one of `names` and no marker.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: is a file, not a folder for {kind}")
    if (folder / marker).exists():
        return
    for name in names:
        if (found := next(folder.glob(name), None)) is not None:
            raise ConfigError(
                f"{folder}: holds {found.name} but no {marker}, so it is not {kind} that gatelm "
                "wrote; choose another folder"
            )


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder to fill; it replaces `folder` if the body succeeds, else nothing changes.

    What a killed process left of an earlier attempt is removed.

    Raises:
        WriteError: when it cannot be made or renamed.
    """
    unfinished = folder.with_name(f".{folder.name}.{_UNFINISHED}-{os.getpid()}")
    try:
        with writing(folder):
            _remove_stale(folder)
            unfinished.mkdir(parents=True)
        with _held(unfinished):
            yield unfinished
            with writing(folder):
                for path in unfinished.iterdir():
                    sync(path)
                shutil.rmtree(folder, ignore_errors=True)
                unfinished.rename(folder)
                sync(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _remove_stale(folder: Path) -> None:
    """Remove unfinished folders whose process has ended."""
    for path in folder.parent.glob(f".{folder.name}.{_UNFINISHED}-*"):
        with _held(path) as is_free:
            if is_free:
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _held(folder: Path) -> Iterator[bool]:
    """Hold a folder for the body's time; False where another process holds it."""
    try:
        import fcntl
    except ImportError:
        yield False
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = True
    except BlockingIOError:
        is_free = False
    try:
        yield is_free
    finally:
        os.close(descriptor)
