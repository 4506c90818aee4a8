"""Every shipped recipe reads, and describes models that can be counted."""

from __future__ import annotations

import pytest

from gatelm.cli.recipe import load_recipe
from gatelm.config.load import load, packaged_recipes
from gatelm.nn.count import count
from gatelm.nn.model import ModelConfig
from gatelm.study.planning.plan import Plan, PlannedRun, plan
from gatelm.study.planning.spec import StudyConfig, load_study
from gatelm.train.config import RunConfig

ROOT = packaged_recipes()
RECIPES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.yaml"))


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_reads(name: str) -> None:
    config, _ = load_recipe(name)
    if isinstance(config, ModelConfig):
        assert count(config).total > 0
    elif isinstance(config, RunConfig):
        assert count(config.model.replace(vocab_size=100)).total > 0
    else:
        assert isinstance(config, StudyConfig)
        for part in config.parts.values():
            for seed in part.seeds:
                RunConfig.parse({"seed": seed, **part.base}, name)


STUDIES = sorted(
    name
    for name in RECIPES
    if name.startswith("studies/")
    and all(part.get("sizes", {}).get("paper") for part in load(ROOT / name).tree["parts"].values())
)
"""Those that run at three sizes."""


def test_the_design_space_is_studied() -> None:
    asked = (
        *("positions", "granularity", "activation", "nonlinearity", "sparsity", "init", "budget"),
        *("ffn", "learning-rate", "layers", "sinks", "speed-to-loss"),
    )
    assert {f"studies/{name}.yaml" for name in asked} <= set(STUDIES)


@pytest.mark.parametrize("size", ["laptop", "gpu", "paper"])
@pytest.mark.parametrize("name", STUDIES)
def test_study_plans_at_every_size(name: str, size: str) -> None:
    study = load_study(name, [f"size={size}"])
    parts = {key: part.replace(seeds=(0,)) for key, part in study.parts.items()}
    planned = plan(study.replace(parts=parts))
    for key, part in planned.study.parts.items():
        assert set(part.arms) == {run.arm for run in planned.of(key)}
        assert len({run.setting for run in planned.of(key)}) == len(planned.of(key))
        off = [_mismatch(planned, key, run) for run in planned.of(key)]
        assert max(off) < (0.01 if part.match else 1)
    shape = {run.config.model.hidden_dim for run in planned.runs}
    assert shape & {"laptop": {64}, "gpu": {384}, "paper": {1536, 2048, 2560}}[size]


def _mismatch(planned: Plan, part: str, run: PlannedRun) -> float:
    """How far a run is from its baseline's cost; an arm that sets the width itself is exempt."""
    config = planned.study.parts[part]
    match = config.match
    if match is None or match.by in config.arms[run.arm]:
        return 0.0
    cost = "parameters" if match.quantity == "parameters" else "flops"
    base = next(
        other
        for other in planned.of(part)
        if other.arm == config.baseline and other.axes == run.axes
    )
    return abs(getattr(run, cost) / getattr(base, cost) - 1)
