"""Curves of recorded values: a run's metrics.jsonl, a CSV, or a saved step/loss dictionary."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gatelm.config.base import ConfigError, nearest

STEPS = ("step", "steps", "iteration", "iterations", "global_step", "iter")
VALUES = ("loss", "lm_loss", "lm_losses", "losses", "train_loss", "value", "values")
"""Columns that are tried, in this order and in any case, unless one is named."""

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class Curve:
    """A curve: values in the order of the steps, including values that are not finite."""

    name: str
    column: str
    steps: np.ndarray
    values: np.ndarray


def read_curve(path: Path, column: str | None = None) -> Curve:
    """Read the curve in a file, or in the metrics.jsonl of a run's folder.

    The value recorded last for a step counts, as after a resume. A saved dictionary (.pt, .pth) is
    read as plain data: nothing in it is run.

    column: which values; None takes the loss.

    Raises:
        ConfigError: the file cannot be read, or has no such column or no steps.
    """
    file = path / METRICS_FILE if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f"{file}: no such file; name a curve's file, or a run's folder")
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise ConfigError(f"{file}: unknown kind of file; known: {', '.join(READERS)}")
    try:
        columns = reader(file)
    except ConfigError:
        raise
    except Exception as error:
        what = " ".join(str(error).split())[:200]
        raise ConfigError(f"{file}: cannot be read as {file.suffix} ({what})") from None
    where = str(file)
    steps, _ = _column(columns, STEPS, None, where, "steps")
    values, named = _column(columns, VALUES, column, where, "values")
    if len(steps) != len(values):
        raise ConfigError(f"{where}: {len(steps)} steps, but {len(values)} values of {named}")
    return _ordered(path.name or str(path), named, steps, values, where)


def _ordered(
    name: str, column: str, steps: Sequence[Any], values: Sequence[Any], where: str
) -> Curve:
    kept: dict[int, float] = {}
    for step, value in zip(steps, values, strict=True):
        if step in (None, "") or value == "":
            continue
        try:
            at = float(step)
            number = math.nan if value is None else float(value)
        except (TypeError, ValueError):
            raise ConfigError(
                f"{where}: step {step!r} with {column} {value!r} are no numbers"
            ) from None
        if math.isfinite(at):
            kept[int(at)] = number
    if not kept:
        raise ConfigError(f"{where}: no value of {column}")
    order = sorted(kept)
    return Curve(name, column, np.array(order), np.array([kept[s] for s in order], dtype=float))


def _column(
    columns: Mapping[str, Sequence[Any]],
    known: Iterable[str],
    asked: str | None,
    where: str,
    what: str,
) -> tuple[Sequence[Any], str]:
    if asked is not None:
        if asked not in columns:
            raise ConfigError(f"{where}: no column {asked!r}; {nearest(asked, columns)}")
        return columns[asked], asked
    lower = {name.lower(): name for name in columns}
    found = next((lower[name] for name in known if name in lower), None)
    if found is None:
        raise ConfigError(
            f"{where}: no column of {what} (looked for {', '.join(known)}); there are "
            f"{', '.join(columns) or 'none'}" + ("; name one with --column" * (what == "values"))
        )
    return columns[found], found


def _from_jsonl(path: Path) -> dict[str, list[Any]]:
    """Read records of training, if they state their kind; a torn line is skipped."""
    rows = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and row.get("kind", "train") == "train":
            rows.append(row)
    return _from_rows(rows)


def _from_csv(path: Path) -> dict[str, list[Any]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return _from_rows(list(csv.DictReader(file)))


def _from_json(path: Path) -> dict[str, list[Any]]:
    tree = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(tree, list) and all(isinstance(row, dict) for row in tree):
        return _from_rows(tree)
    return _from_dictionary(tree)


def _from_torch(path: Path) -> dict[str, list[Any]]:
    import torch

    return _from_dictionary(torch.load(path, map_location="cpu", weights_only=True))


def _from_dictionary(tree: Any) -> dict[str, list[Any]]:
    """Read the lists of a dictionary, and values that can be turned into lists."""
    if not isinstance(tree, Mapping):
        raise ValueError(f"a {type(tree).__name__}, not a dictionary of steps and values")
    lists = {name: v.tolist() if hasattr(v, "tolist") else v for name, v in tree.items()}
    return {str(name): list(v) for name, v in lists.items() if isinstance(v, (list, tuple))}


def _from_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row if name is not None)
    return {name: [row.get(name, "") for row in rows] for name in names}


READERS: dict[str, Callable[[Path], dict[str, list[Any]]]] = {
    ".jsonl": _from_jsonl,
    ".csv": _from_csv,
    ".json": _from_json,
    ".pt": _from_torch,
    ".pth": _from_torch,
}
