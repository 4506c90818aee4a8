"""A check for values of a config.json that no model of any family can have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gatelm.config import ConfigError
from gatelm.hf.convert.formats.rope import LENGTH, ORIGINAL, one_spelling

_Bounds = tuple[str, Callable[[float], bool]]
"""Requirement on a number: in words, and as a test."""

_COUNT: _Bounds = ("a whole number from 1 on", lambda x: x >= 1 and not x % 1)
_COUNT_OR_NONE: _Bounds = ("a whole number from 0 on", lambda x: x >= 0 and not x % 1)
_POSITIVE: _Bounds = ("a number above 0", lambda x: x > 0)
_EPS: _Bounds = ("a number from 0 to below 1", lambda x: 0 <= x < 1)

_COUNTS = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    f"{LENGTH} {ORIGINAL} n_embd n_layer n_head n_positions d_model"
)
_EPSILONS = "rms_norm_eps layer_norm_eps layer_norm_epsilon layernorm_epsilon norm_eps norm_epsilon"
_ROPE = "factor attention_factor beta_fast beta_slow low_freq_factor high_freq_factor"
_BOUNDS: Mapping[str, _Bounds] = {
    **dict.fromkeys(_COUNTS.split(), _COUNT),
    **dict.fromkeys(_EPSILONS.split(), _EPS),
    **dict.fromkeys((*_ROPE.split(), "short_factor", "long_factor"), _POSITIVE),
    "rope_theta": ("a number above 1", lambda x: x > 1),
    # 0 stands for no window, and for no dense layers
    "sliding_window": _COUNT_OR_NONE,
    "intermediate_size": _COUNT_OR_NONE,
    "partial_rotary_factor": ("a number above 0, of at most 1", lambda x: 0 < x <= 1),
    "initializer_range": ("a number from 0 on", lambda x: x >= 0),
    "attention_dropout": ("a number from 0 to 1", lambda x: 0 <= x <= 1),
}
"""Requirements by config key; in a list they apply to every number."""

_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def check_foreign_config(tree: Mapping[str, Any], where: str) -> None:
    """Refuse a config.json of transformers with impossible or contradicting values.

    A value of null is none: it is left to the family's default.

    Raises:
        ConfigError: with the key, its value and what it may be.
    """
    _check(tree, where)
    text = tree.get("text_config")
    if isinstance(text, Mapping):
        _check(text, f"{where}: text_config")


def _check(tree: Mapping[str, Any], where: str) -> None:
    for key, value in tree.items():
        _check_value(key, value, where)
    for key in _TOKENS:
        ids = tree.get(key)
        for value in ids if isinstance(ids, list) else [ids]:
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise ConfigError(
                    f"{where}: {key}: must be a token's number, or a list of them, not {ids!r:.40}"
                )
    for parameters in _rotary(one_spelling(tree, where)):
        for key, value in parameters.items():
            _check_value(key, value, f"{where}: rope_parameters")
        if "rope_theta" in parameters and parameters["rope_theta"] is None:
            raise ConfigError(
                f"{where}: rope_parameters: rope_theta is null; give a number or remove the key"
            )
        if not isinstance(kind := parameters.get("rope_type", "default"), str):
            raise ConfigError(
                f"{where}: rope_parameters: rope_type: must be a name, not {kind!r:.40}"
            )


def _check_value(key: str, value: Any, where: str) -> None:
    if key not in _BOUNDS or value is None:
        return
    words, allowed = _BOUNDS[key]
    for number in value if isinstance(value, list) else [value]:
        is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
        if not (is_number and math.isfinite(number) and allowed(number)):
            raise ConfigError(f"{where}: {key}: must be {words}, not {number!r:.40}")


def _rotary(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the rotary parameters, those of each kind of layer if they differ."""
    found = tree.get("rope_parameters") or {}
    inner = [value for value in found.values() if isinstance(value, Mapping)]
    yield from inner or [found]
