"""What a run folder says about its run, and files that are written whole or not at all."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gatelm.config.load import packaged_recipes

if TYPE_CHECKING:
    from gatelm.study.planning.plan import PlannedRun

FAILURE = "failure.txt"

Status = Literal["finished", "diverged", "failed", "unfinished"]


@dataclass(frozen=True)
class State:
    """`result` is the run's result.json where it has one; `error` says why it has none."""

    status: Status
    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def done(self) -> bool:
        return self.status in ("finished", "diverged")


def read_state(root: Path, run: PlannedRun) -> State:
    """The state of a planned run; a result of another config, or one cut short, is no result."""
    folder = root / run.folder
    result = read_json(folder / "result.json")
    if result.get("config_hash") == run.config_hash:
        return State("diverged" if result.get("status") == "diverged" else "finished", result)
    if (folder / FAILURE).is_file():
        lines = (folder / FAILURE).read_text(encoding="utf-8").splitlines()
        return State("failed", error=lines[0] if lines else "")
    return State("unfinished")


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file; empty when the file is missing or not such a file."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def write_atomic(path: Path, text: str) -> None:
    """Write beside `path`, then rename: a reader sees the old file or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8", newline="\n")
    temporary.replace(path)


def typed_command(results: Mapping[str, Any]) -> str:
    """The command that ran a study, from its results, with the folders it would use by default.

    Runs taken from a folder that no shipped study makes are trained by whoever types it.
    """
    name = str(results.get("study") or "NAME")
    words = iter(shlex.split(str(results.get("command") or f"gatelm study run {name}")))
    out = []
    for word in words:
        if word == "--out":
            next(words, None)
        elif word == "--reuse":
            reused = Path(next(words, "")).name
            if (packaged_recipes() / "studies" / f"{reused}.yaml").is_file():
                out += [word, f"runs/{reused}"]
        else:
            out.append(word)
    return shlex.join(out)
