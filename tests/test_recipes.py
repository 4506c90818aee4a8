"""Every shipped recipe reads, and describes models that can be counted."""

from __future__ import annotations

import pytest

from gatelm.cli.recipe import load_recipe
from gatelm.config.load import packaged_recipes
from gatelm.nn.count import count
from gatelm.nn.model import ModelConfig
from gatelm.study.spec import StudyConfig
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
