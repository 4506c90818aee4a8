"""The folder of a run: what it holds, and whether a run may start, go on or has ended there."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from gatelm.config import ConfigError
from gatelm.config.load import diff, dump, read_yaml
from gatelm.io.files import write_json, write_text
from gatelm.train.config import RunConfig
from gatelm.train.saving.state import versions

Resume = Literal["auto", "never", "must"]


@dataclass(frozen=True)
class RunResult:
    """How a run ended. `stopped` means early and resumable; the others are final."""

    status: Literal["finished", "diverged", "stopped"]
    folder: Path
    config_hash: str
    steps: int
    tokens: int
    seconds: float
    """Spent in training steps."""
    parameters: int
    gate_parameters: int
    precision: str | None = None
    """Of training, as resolved; None in records written before it was noted."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """By the names of `gatelm.analysis.metrics.registry`; empty unless finished."""
    training: dict[str, float] = field(default_factory=dict)
    """Spikes per step (see `train.watching.monitors.SpikeMonitor`) and speed."""

    def to_json(self) -> dict[str, Any]:
        """The content of result.json."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        del values["folder"]
        return values


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
        """What `train` should do here; writes nothing.

        Raises:
            ConfigError: when the folder holds something else, or `resume` forbids what it holds.
        """
        if not self.run.exists():
            self._refuse_foreign_files()
            if resume == "must":
                raise ConfigError(f"{self.path}: there is no run to resume")
            return "new"
        if resume == "never":
            raise ConfigError(
                f"{self.path}: already holds a run; choose another folder, or resume it"
            )
        if self.config_hash() == cfg.content_hash():
            return "finished" if self.result.exists() else "started"
        if self._differs_in_length_only(cfg):
            if resume == "must":
                return "started"
            raise ConfigError(
                f"{self.path}: holds this run with another train.total_steps; resume it with "
                "--resume must to go on to the new length, or choose another folder"
            )
        raise ConfigError(self._difference(cfg))

    def config_hash(self) -> str:
        """The hash of the config that was started here."""
        return str(self._read(self.run)["config_hash"])

    def begun_config(self) -> RunConfig | None:
        """The config of the run that was started here; None without one, or if it is damaged."""
        if not self.run.exists():
            return None
        try:
            return RunConfig.parse(read_yaml(self.config), str(self.config))
        except ConfigError:
            return None

    def open(self, cfg: RunConfig, *, processes: int, threads: int) -> None:
        """Write config.yaml and run.json; a result of a shorter run is removed."""
        self.path.mkdir(parents=True, exist_ok=True)
        first = self._read(self.run)["started_at"] if self.run.exists() else _now()
        self.result.unlink(missing_ok=True)
        write_text(self.config, dump(cfg.tree()))
        write_json(
            self.run,
            {
                "config_hash": cfg.content_hash(),
                "versions": versions(),
                "processes": processes,
                "threads": threads,
                "started_at": first,
                "command": _command(),
            },
        )

    def write_result(self, result: RunResult) -> None:
        """Write result.json, which marks the run as ended."""
        write_json(self.result, result.to_json())

    def read_result(self) -> RunResult:
        """The result of a finished run."""
        values = self._read(self.result)
        return RunResult(folder=self.path, **values)

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise ConfigError(f"{path}: cannot be read; the run folder is damaged") from None
        return value

    def _refuse_foreign_files(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path}: is a file, not a folder for a run")
        for path in (self.metrics, self.checkpoints, self.model, self.result):
            if path.exists():
                raise ConfigError(
                    f"{self.path}: holds {path.name} but no run.json, so it is no run of ours; "
                    "choose another folder"
                )

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
