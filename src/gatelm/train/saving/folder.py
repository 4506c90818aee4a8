"""The folder of a run: what it holds, and whether a run may start, go on or has ended there."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from gatelm.config import ConfigError, foreign
from gatelm.config.load import diff, dump, read_yaml
from gatelm.io.files import write_json, write_text
from gatelm.io.folders import refuse_foreign
from gatelm.train.config import RunConfig
from gatelm.train.saving.state import versions

Resume = Literal["auto", "never", "must"]


@dataclass(frozen=True)
class RunResult:
    """Result of a run; `stopped` means early and resumable, other statuses are final."""

    status: Literal["finished", "diverged", "stopped"]
    folder: Path
    config_hash: str
    steps: int
    tokens: int
    seconds: float
    """Seconds spent in training steps."""
    parameters: int
    gate_parameters: int
    precision: str | None = None
    """The precision of training; None in records written before it was noted."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """Metrics by the names of `gatelm.analysis.metrics.registry`; empty unless finished."""
    training: dict[str, float] = field(default_factory=dict)
    """Spikes per step (see `train.watching.monitors.SpikeMonitor`) and speed."""

    def to_json(self) -> dict[str, Any]:
        """Return the content of result.json."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        del values["folder"]
        return values


_RESULT = TypeAdapter(RunResult)


class RunFolder:
    """Paths and records of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.run = path / "run.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.analysis = path / "analysis.json"
        self.result = path / "result.json"

    def situation(self, cfg: RunConfig, resume: Resume) -> Literal["new", "started", "finished"]:
        """Decide what `train` should do here, without writing anything.

        Raises:
            ConfigError: when the folder holds something else, or `resume` forbids what it holds.
        """
        if not self.run.exists():
            written = (self.config, self.metrics, self.checkpoints, self.model, self.result)
            names = [path.name for path in written]
            refuse_foreign(self.path, "a run", self.run.name, names)
            if resume == "must":
                raise ConfigError(f"{self.path}: there is no run to resume")
            return "new"
        if resume == "never":
            raise ConfigError(
                f"{self.path}: already holds a run; choose another folder, or resume it"
            )
        if self.config_hash() == cfg.content_hash():
            return "finished" if self._is_whole() else "started"
        if self._differs_in_length_only(cfg):
            if resume == "must":
                return "started"
            raise ConfigError(
                f"{self.path}: holds this run with another train.total_steps; resume it with "
                "--resume must to go on to the new length, or choose another folder"
            )
        raise ConfigError(self._difference(cfg))

    def _is_whole(self) -> bool:
        """Whether the run has ended; one whose model was deleted is made whole again.

        Raises:
            ConfigError: when the model was deleted and no checkpoint is left to make it from.
        """
        if not self.result.exists() or self.read_result().status != "finished":
            return self.result.exists()
        if (self.model / "config.json").is_file():
            return True
        if not any(self.checkpoints.glob("step-*")):
            raise ConfigError(
                f"{self.path}: the run has finished, but {self.model.name}/ is gone and no "
                f"checkpoint is left to make it from; delete {self.result} to train it again"
            )
        return False

    def config_hash(self) -> str:
        """Read the hash of the config that was started here."""
        return str(self._read(self.run).get("config_hash"))

    def begun_config(self) -> RunConfig | None:
        """Read the config of the run that was started here; None if missing or damaged."""
        if not self.run.exists():
            return None
        try:
            return RunConfig.parse(read_yaml(self.config), str(self.config))
        except ConfigError:
            return None

    def open(self, cfg: RunConfig, *, processes: int, threads: int) -> None:
        """Write config.yaml and run.json; a result of a shorter run is removed."""
        self.path.mkdir(parents=True, exist_ok=True)
        first = self._read(self.run).get("started_at") if self.run.exists() else None
        self.result.unlink(missing_ok=True)
        facts = {
            "config_hash": cfg.content_hash(),
            "versions": versions(),
            "processes": processes,
            "threads": threads,
            "started_at": first or _now(),
            "command": _command(),
        }
        write_json(self.run, facts)  # first, since it marks the folder as that of a run
        write_text(self.config, dump(cfg.tree()))

    def write_result(self, result: RunResult) -> None:
        """Write result.json, which marks the run as ended."""
        write_json(self.result, result.to_json())

    def read_result(self) -> RunResult:
        """Read the result of a finished run; keys of a later version are ignored."""
        values = self._read(self.result)
        known = {name: values[name] for name in RunResult.__dataclass_fields__ if name in values}
        with foreign(str(self.result)):
            return _RESULT.validate_python({**known, "folder": self.path})

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: cannot be read; the run folder is damaged")
        return value

    def _differs_in_length_only(self, cfg: RunConfig) -> bool:
        there = self.begun_config()
        if there is None:
            return False
        train = there.train.replace(total_steps=cfg.train.total_steps)
        return there.replace(train=train).content_hash() == cfg.content_hash()

    def _difference(self, cfg: RunConfig) -> str:
        sentence = f"{self.path}: holds a run of another config"
        changes = diff(read_yaml(self.config), cfg.tree())
        if changes:
            path, there, here = changes[0]
            more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
            sentence += f" ({path}: {_shown(there)} there, {_shown(here)} here{more})"
        return sentence + "; choose another folder"


def _shown(value: Any) -> str:
    return "not set" if value is ... else repr(value)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _command() -> str:
    program = "gatelm" if "gatelm" in sys.argv[0] else Path(sys.argv[0]).name
    return shlex.join([program, *sys.argv[1:]])
