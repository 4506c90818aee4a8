"""The data of a plan, checked and prepared once before any worker starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gatelm.data.source import build_source
from gatelm.study.planning.plan import Plan


def prepare_data(plan: Plan, report: Callable[[Any], None] | None = None) -> None:
    """Prepare every corpus of the plan and check that the models fit its vocabulary.

    Args:
        report: told of `gatelm.data.prepare.PrepareProgress`.

    Raises:
        ConfigError: for data that cannot be used, or a vocabulary that is not the model's.
    """
    sizes: dict[str, int] = {}
    for run in plan.runs:
        key = run.config.data.content_hash()
        if key not in sizes:
            sizes[key] = build_source(run.config.data, 0, report=report).vocab_size
        run.config.model_for(sizes[key])
