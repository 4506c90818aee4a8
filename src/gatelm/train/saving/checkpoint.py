"""Checkpoints that are complete or absent, and that say so when they are damaged.

A checkpoint is a folder `step-00000500` with the tensors (`torch.distributed.checkpoint`), the rest
of the state as JSON, and a manifest with the size and SHA-256 of every file. It is written under
another name, flushed, and renamed last, so a process killed in the middle of a save leaves only the
unfinished folder, which the next save removes.
"""

from __future__ import annotations

import errno
import json
import logging
import pickle
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from gatelm.io.files import sha256, sync, write_json
from gatelm.train.saving.reader import TensorReader

FORMAT = 2
"""Version of the format. 2: only tensors. 1: also pickled settings of parameter groups."""
MANIFEST = "manifest.json"
STATE = "state.json"
UNFINISHED = ".tmp"

_UNREADABLE = (
    OSError,
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    EOFError,
    pickle.UnpicklingError,
)
"""Exceptions that torch raises for damaged tensors or those of another model."""

log = logging.getLogger("gatelm")


class CheckpointError(OSError):
    """A checkpoint that cannot be written or read: one sentence with its path."""


def save(
    root: Path, step: int, tensors: dict[str, Any], state: dict[str, Any], *, keep: int
) -> Path:
    """Write `root/step-<step>` and delete all but the newest `keep` complete checkpoints.

    A sound checkpoint of that step is left as it is.

    Raises:
        CheckpointError: when it cannot be written, a full disk above all. Earlier checkpoints are
            untouched then.
    """
    final = root / f"step-{step:08d}"
    unfinished = final.with_name(final.name + UNFINISHED)
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(root)
        if final.exists():
            if _is_sound(final):
                return final
            final.rename(unfinished)
            shutil.rmtree(unfinished)
        _refuse_without_space(root, tensors)
        _write(unfinished, step, tensors, state)
        unfinished.rename(final)
        sync(root)
    except (OSError, RuntimeError, CheckpointException) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise CheckpointError(
            f"{final}: the checkpoint could not be written ({_reason(error)}); "
            "earlier checkpoints are untouched"
        ) from error
    prune(root, keep)
    return final


def load(path: Path, tensors: dict[str, Any]) -> None:
    """Read a verified checkpoint's tensors into `tensors`, in place.

    Raises:
        CheckpointError: when they do not fit.
    """
    try:
        with _single_process():
            dcp_load(tensors, storage_reader=TensorReader(path), no_dist=True)
    except (*_UNREADABLE, CheckpointException) as error:
        raise CheckpointError(
            f"{path}: the checkpoint does not fit this model ({_reason(error)})"
        ) from error


def read_state(path: Path) -> dict[str, Any]:
    """The JSON part of a verified checkpoint."""
    return json.loads((path / STATE).read_text(encoding="utf-8"))


def list_checkpoints(root: Path) -> list[Path]:
    """List the finished checkpoint folders, oldest first."""
    if not root.is_dir():
        return []
    return sorted(p for p in root.iterdir() if re.fullmatch(r"step-\d{8,}", p.name) and p.is_dir())


def verify(path: Path) -> None:
    """Check every file of a checkpoint against its manifest.

    Raises:
        CheckpointError: naming the first file that is missing or differs.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        found_format = manifest["format"]
        files = {
            str(name): (int(entry["bytes"]), str(entry["sha256"]))
            for name, entry in manifest["files"].items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise CheckpointError(
            f"{path}: the checkpoint is damaged ({MANIFEST} is missing or unreadable)"
        ) from None
    if found_format != FORMAT:
        raise CheckpointError(
            f"{path}: checkpoint format {found_format}, and this version reads format {FORMAT}"
        )
    for name, (size, digest) in files.items():
        file = path / name
        if Path(name).name != name or not file.is_file():
            raise CheckpointError(f"{path}: the checkpoint is damaged ({name} is missing)")
        if file.stat().st_size != size:
            raise CheckpointError(
                f"{path}: the checkpoint is damaged ({name} has {file.stat().st_size} bytes, "
                f"not {size})"
            )
        if sha256(file) != digest:
            raise CheckpointError(
                f"{path}: the checkpoint is damaged ({name} differs from its recorded SHA-256)"
            )


def newest_sound(root: Path, on_damage: Callable[[str], None]) -> Path | None:
    """Find the newest checkpoint that passes `verify`; `on_damage` gets a sentence per bad one.

    Returns None when there is no checkpoint at all.

    Raises:
        CheckpointError: when there are some and every one is damaged.
    """
    last_damage = ""
    for path in reversed(list_checkpoints(root)):
        try:
            verify(path)
        except CheckpointError as error:
            last_damage = str(error)
            on_damage(last_damage)
        else:
            return path
    if last_damage:
        raise CheckpointError(
            f"{last_damage}; no older one is sound: choose another output folder to start over"
        )
    return None


def prune(root: Path, keep: int) -> None:
    """Delete complete checkpoints but the newest `keep`; a failed deletion only warns."""
    complete = [path for path in list_checkpoints(root) if (path / MANIFEST).is_file()]
    for path in complete[: -max(keep, 1)]:
        try:
            # Renamed first: a deletion cut short must not look like a damaged checkpoint.
            doomed = path.rename(path.with_name(path.name + UNFINISHED))
            shutil.rmtree(doomed)
        except OSError as error:
            log.warning("%s: the old checkpoint could not be deleted (%s)", path, _reason(error))


def _write(folder: Path, step: int, tensors: dict[str, Any], state: dict[str, Any]) -> None:
    folder.mkdir()
    with _single_process():
        dcp_save(tensors, storage_writer=FileSystemWriter(folder), no_dist=True)
    write_json(folder / STATE, state)
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.iterdir())
    }
    write_json(folder / MANIFEST, {"format": FORMAT, "step": step, "files": files})
    for path in folder.iterdir():
        sync(path)
    sync(folder)


@contextmanager
def _single_process() -> Iterator[None]:
    """Silence torch's warning that one process saves, as it should for replicated state."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _remove_unfinished(root: Path) -> None:
    for path in root.glob(f"step-*{UNFINISHED}"):
        shutil.rmtree(path, ignore_errors=True)


def _is_sound(path: Path) -> bool:
    try:
        verify(path)
    except CheckpointError:
        return False
    return True


def _refuse_without_space(root: Path, tensors: dict[str, Any]) -> None:
    needed = sum(t.numel() * t.element_size() for t in _tensors_in(tensors))
    free = shutil.disk_usage(root).free
    if needed > free:
        raise OSError(
            errno.ENOSPC,
            f"the disk is full: it needs {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free",
        )


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        assert isinstance(value, dict), "a checkpoint holds tensors alone"
        for item in value.values():
            yield from _tensors_in(item)


def _reason(error: BaseException) -> str:
    """Return the cause inside torch's wrappers on one line."""
    if isinstance(error, CheckpointException):
        failures = [failure for failure, _ in error.failures.values()]
        error = failures[0] if failures else error
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
