"""The state of a run, as its folder records it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from gatelm.study.planning.plan import PlannedRun

FAILURE = "failure.txt"

Status = Literal["finished", "diverged", "failed", "unfinished"]


@dataclass(frozen=True)
class State:
    """State of a run: `result` is its result.json if it has one; `error` says why it has none."""

    status: Status
    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The metrics of the result; empty without one."""
        return self.result.get("metrics", {})

    @property
    def done(self) -> bool:
        """True for a run that has its result."""
        return self.status in ("finished", "diverged")


def read_state(root: Path, run: PlannedRun) -> State:
    """Read the state of a planned run; a partial result or one of another config does not count."""
    folder = root / run.folder
    result = read_json(folder / "result.json")
    if result.get("config_hash") == run.config_hash:
        return State("diverged" if result.get("status") == "diverged" else "finished", result)
    if (folder / FAILURE).is_file():
        lines = (folder / FAILURE).read_text(encoding="utf-8").splitlines()
        return State("failed", error=lines[0] if lines else "")
    return State("unfinished")


def read_json(path: Path) -> dict[str, Any]:
    """Read the mapping in a JSON file; empty if the file is missing or holds no mapping."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}
