"""The run's log: one JSON object per line, safe against a crash within a line."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gatelm.io.files import flush, json_text, write_bytes, write_text, writing

log = logging.getLogger("gatelm")


class MetricsLog:
    """`metrics.jsonl`, open for appending.

    Every record has a `kind` ("train", "eval", "health" or "event") and the `step` it belongs to.
    Each line is handed to the operating system as it is written, so a killed process loses at most
    the line it was writing. JSON has no NaN: non-finite numbers are written as null.
    """

    def __init__(self, path: Path, *, keep_through_step: int | None = None) -> None:
        """Open `path`, dropping records after `keep_through_step` and a torn last line."""
        self.path = path
        if path.exists():
            self._trim(keep_through_step)
        self._file = path.open("a", encoding="utf-8")

    def _trim(self, keep_through_step: int | None) -> None:
        """Remove later records and broken lines, after keeping a copy of the file."""
        before = self.path.read_bytes()
        lines = _lines(self.path)
        records = [_parse(line) for line in lines]
        if None in records[:-1]:
            damaged = self.path.with_suffix(".damaged.jsonl")
            write_bytes(damaged, before)
            number = records.index(None) + 1
            log.warning(
                "%s, line %d: not a metrics record; lines that are none were left out, and %s "
                "holds the file as it was",
                self.path,
                number,
                damaged.name,
            )
        kept = [
            record
            for record in records
            if record and (keep_through_step is None or record["step"] <= keep_through_step)
        ]
        write_text(self.path, "".join(_line(record) for record in kept))

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append one record.

        Raises:
            WriteError: when the disk is full, above all.
        """
        with writing(self.path):
            self._file.write(_line({"kind": kind, "step": step, **values}))
            self._file.flush()

    def close(self) -> None:
        """Flush to the disk and close."""
        if not self._file.closed:
            with writing(self.path), self._file:
                flush(self._file)

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: Path, kind: str | None = None) -> Iterator[dict[str, Any]]:
    """Read the records of a metrics file, optionally of one kind only.

    A torn last line, left by a crash, is skipped.

    Raises:
        ValueError: when any earlier line is not a record.
    """
    lines = _lines(path)
    for number, line in enumerate(lines, start=1):
        record = _parse(line)
        if record is None:
            if number == len(lines):
                return
            raise ValueError(f"{path}, line {number}: not a metrics record; the file is damaged")
        if kind is None or record["kind"] == kind:
            yield record


def _lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8", errors="replace").removesuffix("\n").split("\n")
    return [] if lines == [""] else lines


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(record, dict) and "kind" in record and isinstance(record.get("step"), int):
        return record
    return None


def _line(record: dict[str, Any]) -> str:
    return json_text(record) + "\n"
