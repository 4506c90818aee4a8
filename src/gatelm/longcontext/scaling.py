"""Put a scaling of rotary positions into a model's config, in every layer that turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gatelm.config import Config, ConfigError
from gatelm.config.base import nearest
from gatelm.nn.model import LayerOverride, ModelConfig
from gatelm.nn.positions.rope import RopeConfig
from gatelm.nn.positions.scaling import (
    DynamicNtkScaling,
    LinearScaling,
    Llama3Scaling,
    NtkScaling,
    RopeScaling,
    YarnScaling,
)

C = TypeVar("C", bound=Config)

METHODS: dict[str, Callable[[int, float], RopeScaling | None]] = {
    "none": lambda original, factor: None,
    "linear": lambda original, factor: LinearScaling(original_tokens=original, factor=factor),
    "ntk": lambda original, factor: NtkScaling(original_tokens=original, factor=factor),
    "dynamic_ntk": lambda original, factor: DynamicNtkScaling(
        original_tokens=original, factor=factor
    ),
    "yarn": lambda original, factor: YarnScaling(original_tokens=original, factor=factor),
    "yarn_rotations": lambda original, factor: YarnScaling(
        original_tokens=original, factor=factor, ramp="rotations"
    ),
    "llama3": lambda original, factor: Llama3Scaling(original_tokens=original, factor=factor),
}
"""Scalings that need no more than the original length and a factor, with published defaults.
`linear` is position interpolation; `yarn` has the ramp of the code in circulation, `yarn_rotations`
the paper's."""


def scaled(cfg: ModelConfig, method: str, factor: float, original_tokens: int) -> ModelConfig:
    """Return the config for `original_tokens` * `factor` tokens, by a name of `METHODS`.

    A scaling that is there already is replaced; `none` removes it.

    Raises:
        ConfigError: an unknown method, a factor below 1, or no layer with rotary positions.
    """
    if method not in METHODS:
        raise ConfigError(f"method {method!r}: no such scaling; {nearest(method, METHODS)}")
    if factor < 1:
        raise ConfigError(f"factor {factor:g}: a scaling is for longer texts, so 1 or more")
    return with_scaling(cfg, METHODS[method](original_tokens, factor))


def with_scaling(cfg: ModelConfig, scaling: RopeScaling | None) -> ModelConfig:
    """Return the config with this scaling in place of every layer's own.

    Raises:
        ConfigError: when no layer has rotary positions, or heads do not fit the scaling.
    """
    return with_rope(cfg, scaling=scaling)


def with_rope(cfg: ModelConfig, **changes: Any) -> ModelConfig:
    """Return the config with fields of every layer's `RopeConfig` changed.

    Raises:
        ConfigError: when no layer has rotary positions, or the result cannot work.
    """
    turning = [i for i, layer in enumerate(cfg.layers()) if rope_of(layer.mixer) is not None]
    if not turning:
        raise ConfigError("the model has no rotary positions (mixer.rope), so none to scale")
    base = cfg.layer
    rope = rope_of(base.mixer)
    if rope is not None:
        mixer = _changed(base.mixer, rope=_changed(rope, **changes))
        cfg = _changed(cfg, layer=_changed(base, mixer=mixer))
    # layers whose overrides name the rope in other words, or whose own kind differs
    late = [i for i in turning if not _holds(rope_of(cfg.layers()[i].mixer), changes)]
    if late:
        tree = RopeConfig(**changes).tree()
        paths = {f"mixer.rope.{name}": tree[name] for name in changes}
        override = LayerOverride(layers=tuple(late), set=paths)
        cfg = _changed(cfg, layer_overrides=(*cfg.layer_overrides, override))
    return cfg


def ropes(cfg: ModelConfig) -> list[RopeConfig]:
    """Return the different rotary positions of all layers that have any."""
    found = [rope_of(layer.mixer) for layer in cfg.layers()]
    return list(dict.fromkeys(rope for rope in found if rope is not None))


def rope_of(mixer: Any) -> RopeConfig | None:
    """Return a mixer's rotary positions; None if it has none."""
    return getattr(mixer, "rope", None)


def _changed(config: C, **changes: Any) -> C:
    """Replace fields as `Config.replace` does, but raise ConfigError for impossible values."""
    values = {name: getattr(config, name) for name in type(config).model_fields}
    return type(config).parse({**values, **changes})


def _holds(rope: RopeConfig | None, changes: dict[str, Any]) -> bool:
    return rope is not None and all(getattr(rope, name) == v for name, v in changes.items())
