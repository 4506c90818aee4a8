"""Atomic writing: a file is either the old one or the new one, whatever happens in between."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError


class WriteError(OSError):
    """Raised when a file cannot be written: one sentence with its path."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error in the body while writing `path` into one sentence.

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


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step: written beside it, flushed to disk, renamed.

    Raises:
        WriteError: when it cannot be written; the old file is untouched then.
    """
    temporary = path.with_name(path.name + ".tmp")
    with writing(path):
        try:
            with temporary.open("wb") as file:
                file.write(content)
                flush(file)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, as `write_bytes` does."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write plain data as JSON with a line end, as `write_bytes` does."""
    write_text(path, json_text(value, indent=1) + "\n")


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return plain data as JSON. JSON has no NaN: non-finite numbers become null."""
    return json.dumps(finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def finite(value: Any) -> Any:
    """Replace every NaN and infinity in `value` by None, for JSON."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def flush(file: IO[Any]) -> None:
    """Flush an open file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of names, to the disk."""
    if os.name == "nt" and path.is_dir():  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Return the hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
