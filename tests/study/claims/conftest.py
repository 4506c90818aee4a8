"""Results of a study, made of numbers instead of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gatelm.study.results.statistics import correct, paired_difference


@pytest.fixture
def make_results():
    def make(
        values: Mapping[str, Mapping[str, list[float | None]]],
        *,
        study: str = "own",
        part: str = "text",
        size: str | None = None,
        axes: Mapping[str, Any] | None = None,
        diverged: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """`values[arm][metric]` by seed; the runs of `diverged` arms have none."""
        runs = []
        for arm, metrics in values.items():
            seeds = max((len(by_seed) for by_seed in metrics.values()), default=3)
            for seed in range(seeds):
                found = {m: v[seed] for m, v in metrics.items() if m != "seconds"}
                runs.append({
                    "part": part, "arm": arm, "axes": dict(axes or {}), "seed": seed,
                    "status": "diverged" if arm in diverged else "finished",
                    "metrics": {} if arm in diverged else found, "parameters": 10,
                    "gate_parameters": 1, "flops": 2.0,
                    "seconds": metrics.get("seconds", [1.0] * seeds)[seed],
                })  # fmt: skip
        comparisons = []
        for metric in dict.fromkeys(m for v in values.values() for m in v if m != "seconds"):
            others = [a for a in values if a != "none" and metric in values[a]]
            if "none" in values and metric in values["none"]:
                base = dict(enumerate(values["none"][metric]))
                found = correct([
                    paired_difference(dict(enumerate(values[a][metric])), base) for a in others
                ])  # fmt: skip
                comparisons += [
                    {"part": part, "arm": a, "axes": dict(axes or {}), "baseline": "none",
                     "metric": metric, **vars(c)}
                    for a, c in zip(others, found, strict=True)
                ]  # fmt: skip
        return {
            "study": study, "size": size, "command": f"gatelm study run {study} --out /a/b",
            "parts": {part: {"baseline": "none", "confidence": 0.95}},
            "runs": runs, "summaries": [], "comparisons": comparisons,
        }  # fmt: skip

    return make


@pytest.fixture
def along(make_results):
    def along(path: str, points: Mapping[Any, Mapping[str, Any]], **options: Any) -> dict[str, Any]:
        """Results at several points of one axis."""
        whole: dict[str, Any] | None = None
        for value, values in points.items():
            lost = tuple(arm for arm, metrics in values.items() if metrics is None)
            known = {arm: metrics or {} for arm, metrics in values.items()}
            made = make_results(known, axes={path: value}, diverged=lost, **options)
            if whole is None:
                whole = made
            else:
                whole["runs"] += made["runs"]
                whole["comparisons"] += made["comparisons"]
        assert whole is not None
        return whole

    return along
