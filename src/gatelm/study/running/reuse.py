"""Runs that another study has trained already: taken over by the hash of their config."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from gatelm.config.base import ConfigError
from gatelm.study.planning.plan import Plan, PlannedRun
from gatelm.study.running.folder import read_json, read_state

_LEFT_BEHIND = shutil.ignore_patterns("checkpoints", ".lock", "*.tmp", "output.log")


def take_over(plan: Plan, root: Path, sources: Iterable[Path]) -> list[PlannedRun]:
    """Copy into `root` what the folders of other studies hold of the runs that it lacks.

    A run is the same when its content hash is: what is not part of that hash (how often it
    validated, its threads) is as the other study had it. Checkpoints are not copied.

    Returns:
        The runs that were copied.

    Raises:
        ConfigError: for a source without the runs of a study, or with links in a run's folder.
    """
    known: dict[str, Path] = {}
    for source in sources:
        if not (source / "runs").is_dir():
            raise ConfigError(
                f"--reuse {source}: no runs there; name a folder that `gatelm study run` wrote"
            )
        if source.resolve() != root.resolve():
            known = {**_finished(source), **known}
    taken = []
    for run in plan.runs:
        origin = known.get(run.config_hash)
        if origin is not None and not read_state(root, run).done:
            _copy(origin, root / run.folder)
            taken.append(run)
    return taken


def _finished(source: Path) -> dict[str, Path]:
    """Find folders with a result, by the hash of their config."""
    folders = sorted(path.parent for path in (source / "runs").rglob("result.json"))
    return {
        str(result["config_hash"]): folder
        for folder in folders
        if (result := read_json(folder / "result.json")).get("config_hash")
    }


def _copy(origin: Path, target: Path) -> None:
    """Copy a folder beside `target`, then rename it, so that a partial copy is no run."""
    inside = [origin, *origin.rglob("*")]
    if linked := next((path for path in inside if path.is_symlink()), None):
        raise ConfigError(
            f"--reuse: {linked} is a link, and what it points to may lie anywhere; replace it by "
            "the file, or train the run anew"
        )
    temporary = target.with_name(target.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(origin, temporary, ignore=_LEFT_BEHIND)
    shutil.rmtree(target, ignore_errors=True)
    temporary.replace(target)
