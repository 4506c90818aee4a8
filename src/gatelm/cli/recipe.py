"""Which kind of config a recipe is: a run, a study or a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatelm.config import Config, ConfigError

if TYPE_CHECKING:
    from gatelm.config.load import Loaded
    from gatelm.nn.model import ModelConfig


def load_recipe(name: str, overrides: Sequence[str] = ()) -> tuple[Config, Loaded]:
    """The validated config of a recipe, by the keys at its top, and the tree it came from.

    Raises:
        ConfigError: when it is none of the three kinds, or not valid.
    """
    from gatelm.config.load import load

    loaded = load(name, overrides)
    where = str(loaded.path)
    if "parts" in loaded.tree:
        from gatelm.study.spec import load_study

        return load_study(name, overrides), loaded
    if "model" in loaded.tree:
        from gatelm.train.config import RunConfig

        return RunConfig.parse(loaded.tree, where), loaded
    if "hidden_dim" in loaded.tree:
        from gatelm.nn.model import ModelConfig

        return ModelConfig.parse(loaded.tree, where), loaded
    raise ConfigError(
        f"{where}: neither a run (key model), nor a study (key parts), nor a model (key hidden_dim)"
    )


def model_of(config: Config, name: str) -> tuple[ModelConfig, int]:
    """The model of a run or model recipe, vocabulary filled in, and its sequence length in tokens.

    Raises:
        ConfigError: for a study, which has many models.
    """
    from gatelm.nn.model import ModelConfig
    from gatelm.train.config import RunConfig

    if isinstance(config, ModelConfig):
        return config, 4096
    if not isinstance(config, RunConfig):
        raise ConfigError(f"{name}: a study has many models; `gatelm study plan {name}` lists them")
    if config.model.vocab_size is not None:
        return config.model, config.data.seq_len
    from gatelm.data.source import build_source

    vocab_size = build_source(config.data, config.seed).vocab_size
    return config.model_for(vocab_size), config.data.seq_len
