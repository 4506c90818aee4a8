"""The start of a run's weights: a seed, or a trained model with or without new gates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator

from gatelm.config import Config, ConfigError
from gatelm.data.tokenizer import Tokenizer
from gatelm.nn.gates.upcycle import compensation, new_gates, rescale
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import (
    CONFIG,
    TOKENIZER,
    find_model,
    is_gatelm_config,
    load_model,
    parse_config,
)


class InitFrom(Config):
    """A trained model to start from. Gates that it lacks are new."""

    path: str
    """A model or run folder of this package (`gatelm convert` makes one of other models)."""
    new_gates: Literal["preserve", "as_configured"] = "preserve"
    """preserve: the outputs stay as they are. Each new gate must start at one score for all tokens
    (init.weight zeros), and the matrix behind it is divided by that score. as_configured: new gates
    start as their `init` says and nothing else changes, so the outputs do."""

    @field_validator("path")
    @classmethod
    def _not_empty(cls, path: str) -> str:
        if not path.strip():
            raise ValueError("name a model folder, or set init_from to null")
        return path


def model_folder(path: str) -> Path:
    """Return the folder of config.json: `path` itself, or its model/.

    Raises:
        ConfigError: when it holds no model of this package.
    """
    folder = Path(path).expanduser()
    found = find_model(folder)
    if found is None:
        instead = "make one with `gatelm convert SRC DST`, or train one"
        if folder.is_dir() and (folder / "checkpoints").is_dir():
            instead = "that run is not finished; resume it first"
        raise ConfigError(
            f"init_from.path: {path}: no model folder ({CONFIG} is missing); {instead}"
        )
    return found


def trained_config(path: str) -> ModelConfig:
    """Read the config of the model at `path`.

    Raises:
        ConfigError: when there is none, or it is a model of another library.
    """
    file = model_folder(path) / CONFIG
    try:
        tree: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(f"init_from.path: {file}: cannot be read as JSON") from None
    if not is_gatelm_config(tree):
        kind = tree.get("model_type") if isinstance(tree, dict) else None
        raise ConfigError(
            f"init_from.path: {path}: a model of type {kind!r}, not of gatelm; "
            f"convert it first: gatelm convert {path} DST"
        )
    return parse_config(tree, f"init_from.path: {file}")


def tokenizer_file(path: str) -> Path | None:
    """Return the tokenizer.json of the model at `path`, if it has one."""
    file = model_folder(path) / TOKENIZER
    return file if file.is_file() else None


def starting_model(
    cfg: ModelConfig, seed: int, init_from: InitFrom | None, tokenizer: Tokenizer | None
) -> Decoder:
    """Make the model at step 0, a pure function of the arguments and the folder.

    Args:
        cfg: with its vocabulary.
        tokenizer: of the data, which must be the trained model's.

    Raises:
        ConfigError: when the trained model is not `cfg` without some gates, a new gate cannot start
            without changing the outputs, or tokenizers differ.
    """
    model = Decoder(cfg)
    init_weights(model, seed)
    if init_from is None:
        return model
    trained, its_tokenizer = load_model(model_folder(init_from.path))
    try:
        added = new_gates(trained.cfg, cfg)
        preserve = init_from.new_gates == "preserve"
        factors = compensation(trained.cfg, cfg) if preserve else {}
    except ConfigError as error:
        raise ConfigError(f"init_from.path {init_from.path}: {error}") from None
    _check_tokenizer(init_from.path, its_tokenizer, tokenizer)
    state = dict(trained.state_dict())
    rescale(state, factors)
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert all(".gates." in name for name in missing), (missing, added)
    return model


def _check_tokenizer(path: str, trained: Tokenizer | None, data: Tokenizer | None) -> None:
    if trained is None or data is None:
        return
    probe = "Gated attention, 1790: “na\u00efve”\n\tdef f(x): return x ** 2"
    if trained.encode(probe).tolist() != data.encode(probe).tolist():
        raise ConfigError(
            f"data.tokenizer: gives other ids than the tokenizer of {path}; remove it, and the "
            "model's own is used"
        )
