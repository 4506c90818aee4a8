"""Tasks of lm-evaluation-harness, through its own `hf` model.

A model folder of this package loads there like any other, since `gatelm` registers its model class
with transformers.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gatelm.config import ConfigError
from gatelm.config.base import nearest

INSTALL = "pip install 'gatelm[eval]'"


def run_tasks(
    folder: Path | str,
    tasks: Sequence[str],
    *,
    include_path: Path | str | None = None,
    limit: int | None = None,
    batch_size: int = 8,
    device: str = "cpu",
    dtype: str = "float32",
) -> dict[str, dict[str, float | str]]:
    """Metric by name for each task, standard errors among them.

    Args:
        folder: a folder with config.json and safetensors, or a run folder.
        include_path: a folder of task files of your own.
        limit: so many examples a task; None: all.

    Raises:
        ConfigError: when the harness is not installed, a task is not known, or the folder holds no
            model.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(f"--tasks needs the package lm-eval ({INSTALL})")
    found = _model_folder(Path(folder).expanduser())
    if include_path is not None and not Path(include_path).is_dir():
        raise ConfigError(f"--include-path {include_path}: there is no such folder")
    from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    with _quiet():
        manager = TaskManager(include_path=None if include_path is None else str(include_path))
        for task in tasks:
            if not manager.match_tasks([task]):
                raise ConfigError(f"--tasks {task}: not known; {nearest(task, manager.all_tasks)}")
        results: Any = simple_evaluate(
            model="hf",
            model_args={"pretrained": str(found), "dtype": dtype},
            tasks=list(tasks),
            task_manager=manager,
            limit=limit,
            batch_size=batch_size,
            device=device,
            bootstrap_iters=0,
        )
    return {task: _metrics(values) for task, values in results["results"].items()}


def _metrics(values: dict[str, Any]) -> dict[str, float | str]:
    """Numbers under plain names: `acc` of "acc,none"; another filter's is kept in the name."""
    out: dict[str, float | str] = {}
    for key, value in values.items():
        name = key.removesuffix(",none").replace(",", "_")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            out[name] = float(value)
    return out


def _model_folder(folder: Path) -> Path:
    for candidate in (folder, folder / "model"):
        if (candidate / "config.json").is_file():
            return candidate
    raise ConfigError(
        f"{folder}: --tasks needs a folder with config.json and safetensors; of a GGUF file "
        "`gatelm convert` makes one"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """The harness logs its defaults as warnings."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
