"""Recipes of any kind: a run, a study or a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatelm.config import Config, ConfigError

if TYPE_CHECKING:
    from gatelm.config.load import Loaded
    from gatelm.nn.model import ModelConfig
    from gatelm.train.config import RunConfig


def load_recipe(name: str, overrides: Sequence[str] = ()) -> tuple[Config, Loaded]:
    """The validated config of a recipe, by the keys at its top, and the tree it came from.

    Raises:
        ConfigError: when it is none of the three kinds, or not valid.
    """
    from gatelm.config.load import load

    loaded = load(name, overrides)
    where = str(loaded.path)
    if "parts" in loaded.tree:
        from gatelm.study.planning.spec import load_study

        return load_study(name, overrides), loaded
    if "model" in loaded.tree or "init_from" in loaded.tree:
        from gatelm.train.config import RunConfig

        return RunConfig.parse(loaded.tree, where), loaded
    if "hidden_dim" in loaded.tree:
        from gatelm.nn.model import ModelConfig

        return ModelConfig.parse(loaded.tree, where), loaded
    raise ConfigError(
        f"{where}: neither a run (key model or init_from), nor a study (key parts), nor a model "
        "(key hidden_dim)"
    )


def load_run(name: str, overrides: Sequence[str] = ()) -> tuple[RunConfig, Loaded]:
    """Load a recipe that must be a run; see `load_recipe`.

    Raises:
        ConfigError: also when the recipe is a study or a model, with what would do.
    """
    from gatelm.train.config import RunConfig

    config, loaded = load_recipe(name, overrides)
    if not isinstance(config, RunConfig):
        study = "parts" in loaded.tree
        instead = f"a study; `gatelm study run {name}` trains it" if study else "a model, not a run"
        raise ConfigError(f"{loaded.path}: this recipe is {instead}")
    return config, loaded


def model_of(config: Config, name: str) -> tuple[ModelConfig, int]:
    """The model of a run or model recipe, and its sequence length in tokens.

    A vocabulary that only the data knows is the one that its tokenizer is asked for.

    Raises:
        ConfigError: for a study, which has many models.
    """
    from gatelm.nn.model import ModelConfig
    from gatelm.train.config import RunConfig

    if isinstance(config, ModelConfig):
        return config, 4096
    if not isinstance(config, RunConfig):
        raise ConfigError(f"{name}: a study has many models; `gatelm study plan {name}` lists them")
    from gatelm.study.planning.vocabulary import sized

    return sized(config), config.data.seq_len
