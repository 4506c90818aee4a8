"""Tasks of lm-evaluation-harness, on a model of transformers through its own `hf` model."""

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


def check_installed() -> None:
    """
    Raises:
        ConfigError: where lm-evaluation-harness is not installed.
    """
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(f"--tasks needs the package lm-eval ({INSTALL})")


def run_tasks(
    model: Any,
    tokenizer: Any,
    tasks: Sequence[str],
    *,
    unused_ids: Sequence[int] = (),
    include_path: Path | str | None = None,
    limit: int | None = None,
    batch_size: int = 8,
) -> dict[str, dict[str, float | str]]:
    """Run tasks; returns each task's metrics by name, standard errors among them.

    Args:
        model: a causal language model of transformers, where it is to run.
        tokenizer: a tokenizer of transformers.
        unused_ids: rows of the vocabulary without a token, which get no probability.
        include_path: a folder of task files of your own.
        limit: largest number of examples of a task; None: all.

    Raises:
        ConfigError: when the harness is not installed, or a task is not known.
    """
    check_installed()
    if include_path is not None and not Path(include_path).is_dir():
        raise ConfigError(f"--include-path {include_path}: there is no such folder")
    from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]
    from lm_eval.models.huggingface import HFLM  # pyright: ignore[reportMissingImports]
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    class WithoutUnusedRows(HFLM):
        """The harness's model, whose probabilities are those of tokens that exist."""

        def _model_call(self, *args: Any, **kwargs: Any) -> Any:
            logits = super()._model_call(*args, **kwargs)
            logits[..., list(unused_ids)] = float("-inf")
            return logits

    with _quiet():
        manager = TaskManager(include_path=None if include_path is None else str(include_path))
        for task in tasks:
            if not manager.match_tasks([task]):
                raise ConfigError(f"--tasks {task}: not known; {nearest(task, manager.all_tasks)}")
        results: Any = simple_evaluate(
            model=WithoutUnusedRows(
                pretrained=model, tokenizer=tokenizer, batch_size=batch_size, backend="causal"
            ),
            tasks=list(tasks),
            task_manager=manager,
            limit=limit,
            bootstrap_iters=0,
        )
    return {task: _metrics(values) for task, values in results["results"].items()}


def _metrics(values: dict[str, Any]) -> dict[str, float | str]:
    """Rename metrics plainly: `acc` for "acc,none"; another filter stays in the name."""
    out: dict[str, float | str] = {}
    for key, value in values.items():
        name = key.removesuffix(",none").replace(",", "_")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            out[name] = float(value)
    return out


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings by which the harness logs its defaults."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
