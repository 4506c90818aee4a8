"""Files that are either the old ones or the new ones, whatever happens in between."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError


class WriteError(OSError):
    """A file that could not be written: one sentence with its path."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what goes wrong in the body while writing `path` into one sentence.

    Raises:
        WriteError: for a full disk, missing permission and the like.
    """
    try:
        yield
    except WriteError:
        raise
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise WriteError(f"{path}: cannot be written ({reason})") from error


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step: written beside it, flushed to disk, renamed.

    Raises:
        WriteError: when it cannot be written; the old file is untouched then.
    """
    temporary = path.with_name(path.name + ".tmp")
    with writing(path):
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """The same for JSON; non-finite numbers become null."""
    write_text(
        path, json.dumps(finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    )


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def finite(value: Any) -> Any:
    """`value` with every NaN and infinity in it replaced by None, for JSON."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
