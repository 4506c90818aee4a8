"""Rotary positions in config.json: every spelling in circulation read, one written.

A key that could mean two things is refused by name; one that is known to change nothing is passed
over. Where a value contradicts another and all readers agree which of them counts, a warning says
so.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from gatelm.config import ConfigError
from gatelm.hf.convert.formats.format import Format
from gatelm.nn.positions.rope import RopeConfig, rotary_frequencies
from gatelm.nn.positions.scaling import (
    DynamicNtkScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NtkScaling,
    RopeScaling,
    YarnScaling,
    plain_frequencies,
)

KINDS = {"su": "longrope"}
"""Older names of a rope_type."""

INERT = ("mrope_section", "mrope_interleaved", "finetuned")
"""With text alone all axes of mrope are equal; `finetuned` is a note."""

ORIGINAL, LENGTH = "original_max_position_embeddings", "max_position_embeddings"
_OPTIONAL = {
    "linear": ("factor",),
    "dynamic": ("factor", ORIGINAL),
    "yarn": (
        "factor",
        ORIGINAL,
        "beta_fast",
        "beta_slow",
        "truncate",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
    ),
    "longrope": ("factor", ORIGINAL, "short_factor", "long_factor", "attention_factor"),
    "llama3": ("factor", ORIGINAL, "low_freq_factor", "high_freq_factor"),
    "proportional": ("factor",),
    "default": (),
}
"""Keys that each rope_type reads beside rope_theta and partial_rotary_factor."""


def one_spelling(tree: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Move all rotary settings of a config.json to `rope_parameters`.

    Raises:
        ConfigError: where two spellings of one setting disagree.
    """
    tree = dict(tree)
    scaling, given = tree.pop("rope_scaling", None), tree.get("rope_parameters")
    for name, value in (("rope_scaling", scaling), ("rope_parameters", given)):
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{where}: {name}: must be an object, not {value!r:.40}")
    if not scaling and not given:
        tree.pop(ORIGINAL, None)
        return tree
    both = {"rope_scaling": scaling, "rope_parameters": given}
    spelled = {
        name: {key: _kind(each, f"{where}: {name}") for key, each in _nested(value).items()}
        for name, value in both.items()
        if value
    }
    if len(spelled) == 2:
        _agree(spelled["rope_scaling"], spelled["rope_parameters"], where)
    merged = {
        key: {k: v for each in spelled.values() for k, v in each.get(key, {}).items()}
        for key in next(iter(spelled.values()))
    }
    for parameters in merged.values():
        for key in ("rope_theta", "partial_rotary_factor", ORIGINAL):
            outer, inner = tree.get(key), parameters.get(key)
            if key == ORIGINAL and outer is not None and len(merged) == 1:
                parameters.setdefault(key, outer)
            if None not in (outer, inner) and outer != inner and len(merged) == 1:
                raise ConfigError(
                    f"{where}: {key} is {outer}, but {inner} in the rotary parameters; make them "
                    "agree"
                )
    tree.pop(ORIGINAL, None)
    tree["rope_parameters"] = merged.get("", merged)
    return tree


def read_rope(c: Any, layer_type: str, head_dim: int, fmt: Format, where: str) -> RopeConfig:
    """Read a layer's rotary positions from a config that transformers has filled with defaults.

    Raises:
        ConfigError: for a key or kind that cannot be expressed.
    """
    found: dict[str, Any] = dict(c.rope_parameters or {})
    if isinstance(found.get(layer_type), dict):
        found = dict(found[layer_type])
    where = f"{where}: rope_parameters"
    for inert in (*INERT, "type"):
        found.pop(inert, None)
    base, partial = found.pop("rope_theta"), found.pop("partial_rotary_factor", 1.0)
    kind = found.pop("rope_type", "default")
    if kind not in _OPTIONAL:
        raise ConfigError(
            f"{where}: rope_type {kind!r} cannot be expressed; known: {', '.join(_OPTIONAL)}"
        )
    if unknown := sorted(set(found) - set(_OPTIONAL[kind])):
        raise ConfigError(f"{where}: rope_type {kind!r} with {', '.join(unknown)}: not known here")
    if kind == "proportional":
        # frequencies base^(-2i/head_dim) for the first pairs: those of another base over fewer
        factor = found.get("factor") or 1.0
        scaling = None if factor == 1.0 else LinearScaling(factor=factor)
        return RopeConfig(base=base**partial, partial_factor=partial, scaling=scaling)
    if partial != 1.0 and not fmt.partial_rotary:
        raise ConfigError(
            f"{where}: partial_rotary_factor {partial:g}: {fmt.label} ignores it, so it is a "
            "mistake"
        )
    found = {key: value for key, value in found.items() if value is not None}
    scaling = None if kind == "default" else _scaling(kind, found, c.max_position_embeddings, where)
    rope = RopeConfig(base=base, partial_factor=partial, scaling=scaling)
    rope.check(head_dim, where)
    return rope


def write_rope(rope: RopeConfig, head_dim: int, fmt: Format) -> dict[str, Any]:
    """Return the keys of config.json for these positions, as transformers names them.

    What it has no word for is written by its frequencies: they are those of LongRoPE with the same
    factors for short texts as for long ones. NTK scaling is a change of base.
    """
    base, scaling = rope.base, rope.scaling
    if isinstance(scaling, NtkScaling):
        base, scaling = scaling.scaled_base(base, rope.rotary_dim(head_dim)), None
    if isinstance(scaling, YarnScaling) and scaling.ramp == "rotations":
        scaling = by_frequencies(rope, head_dim)
    parameters = {"rope_theta": base, "rope_type": "default", **_theirs(scaling)}
    if fmt.rope_kinds:
        return {"rope_parameters": {kind: dict(parameters) for kind in fmt.rope_kinds}}
    tree: dict[str, Any] = {"rope_theta": base}
    if fmt.partial_rotary:
        # readers differ in where they look, and one that finds nothing assumes a quarter
        parameters = {"partial_rotary_factor": rope.partial_factor, **parameters}
        tree["partial_rotary_factor"] = rope.partial_factor
    tree["rope_parameters"] = parameters
    if scaling is not None:
        # readers of before rope_parameters would pass over the scaling in silence
        tree["rope_scaling"] = dict(parameters)
    if isinstance(scaling, DynamicNtkScaling):
        # its frequencies grow from this length on
        tree[LENGTH] = scaling.original_tokens
    return tree


def by_frequencies(rope: RopeConfig, head_dim: int) -> LongRopeScaling:
    """Return LongRoPE factors with the frequencies of a scaling that does not depend on length."""
    assert isinstance(rope.scaling, YarnScaling)
    rotary_dim = rope.rotary_dim(head_dim)
    found = rotary_frequencies(rope, head_dim, torch.zeros(1, dtype=torch.long))
    plain = plain_frequencies(rope.base, rotary_dim)
    factors = tuple((plain.double() / found.double()).tolist())
    return LongRopeScaling(
        original_tokens=rope.scaling.original_tokens,
        factor=rope.scaling.factor,
        short_factors=factors,
        long_factors=factors,
        attention_factor=rope.scaling.amplitude,
    )


def _nested(value: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Sort rotary parameters by layer type; the empty name stands for all layers."""
    inner = {k: v for k, v in value.items() if isinstance(v, Mapping)}
    return dict(inner) if inner else {"": value}


def _kind(parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Rename `type` to `rope_type`, and older kinds to their names of today."""
    out = dict(parameters)
    old, new = out.pop("type", None), out.get("rope_type")
    if None not in (old, new) and KINDS.get(str(old), old) != KINDS.get(str(new), new):
        raise ConfigError(f"{where}: type is {old!r} and rope_type {new!r}; remove one of them")
    kind = new if new is not None else old
    if kind is not None:
        out["rope_type"] = KINDS.get(str(kind), kind)
    return out


def _agree(
    scaling: Mapping[str, Mapping[str, Any]],
    parameters: Mapping[str, Mapping[str, Any]],
    where: str,
) -> None:
    if set(scaling) != set(parameters):
        raise ConfigError(
            f"{where}: rope_scaling and rope_parameters name different kinds of layers; remove one"
        )
    for key, old in scaling.items():
        new = parameters[key]
        for name in sorted({*old, *new}):
            may_lack = name in ("rope_theta", "partial_rotary_factor")
            if may_lack and not (name in old and name in new):
                continue
            if old.get(name) != new.get(name):
                raise ConfigError(
                    f"{where}: {name} is {old.get(name)!r} in rope_scaling, but "
                    f"{new.get(name)!r} in rope_parameters; remove one of the two"
                )


def _scaling(kind: str, found: dict[str, Any], length: int, where: str) -> RopeScaling:
    if kind == "linear":
        return LinearScaling.parse({"factor": _needed(found, "factor", kind, where)}, where)
    original = found.get(ORIGINAL, length)
    if kind == "dynamic":
        if original != length:
            raise ConfigError(
                f"{where}: {ORIGINAL} {original} with rope_type 'dynamic': transformers grows the "
                f"base from {LENGTH} ({length}) on, others from {original}; remove the key"
            )
        alpha = _needed(found, "factor", kind, where)
        return DynamicNtkScaling.parse(
            {"original_tokens": length, "factor": alpha, "alpha": alpha}, where
        )
    factor = found.get("factor", length / original if kind != "llama3" else None)
    tree: dict[str, Any] = {"original_tokens": original, "factor": factor}
    if factor is None:
        _needed(found, "factor", kind, where)
    if kind != "llama3" and length / original not in (1.0, factor):
        warnings.warn(
            f"{where}: factor {factor:g} is not {LENGTH} / {ORIGINAL} = {length / original:g}; the "
            "factor counts",
            stacklevel=2,
        )
    if kind == "llama3":
        for name in ("low_freq_factor", "high_freq_factor"):
            tree[name] = _needed(found, name, kind, where)
        return Llama3Scaling.parse(tree, where)
    if "attention_factor" in found:
        tree["attention_factor"] = found["attention_factor"]
    if kind == "longrope":
        for name in ("short_factor", "long_factor"):
            tree[f"{name}s"] = _needed(found, name, kind, where)
        return LongRopeScaling.parse(tree, where)
    return YarnScaling.parse({**tree, **_yarn(found, where)}, where)


def _yarn(found: Mapping[str, Any], where: str) -> dict[str, Any]:
    tree = {key: found[key] for key in ("beta_fast", "beta_slow") if found.get(key)}
    if found.get("truncate", True) is not True:
        tree["bounds"] = "exact"
    scales = {key: found[key] for key in ("mscale", "mscale_all_dim") if found.get(key)}
    if scales and "attention_factor" in found:
        warnings.warn(
            f"{where}: attention_factor counts; {' and '.join(scales)} beside it does not",
            stacklevel=3,
        )
    elif len(scales) == 1:
        (name,) = scales
        warnings.warn(f"{where}: {name} counts only together with its twin", stacklevel=3)
    elif scales:
        tree |= scales
    return tree


def _needed(found: Mapping[str, Any], key: str, kind: str, where: str) -> Any:
    if found.get(key) is None:
        raise ConfigError(f"{where}: rope_type {kind!r} needs {key}")
    return found[key]


def _theirs(scaling: RopeScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {}
    if isinstance(scaling, LinearScaling):
        return {"rope_type": "linear", "factor": scaling.factor}
    if isinstance(scaling, DynamicNtkScaling):
        return {"rope_type": "dynamic", "factor": scaling.alpha}
    tree: dict[str, Any] = {"factor": scaling.factor, ORIGINAL: scaling.original_tokens}
    if isinstance(scaling, Llama3Scaling):
        ends = {k: getattr(scaling, k) for k in ("low_freq_factor", "high_freq_factor")}
        return {"rope_type": "llama3", **tree, **ends}
    assert isinstance(scaling, (YarnScaling, LongRopeScaling))
    if scaling.attention_factor is not None:
        tree["attention_factor"] = scaling.attention_factor
    if isinstance(scaling, LongRopeScaling):
        factors = {"short_factor": scaling.short_factors, "long_factor": scaling.long_factors}
        return {"rope_type": "longrope", **tree, **{k: list(v) for k, v in factors.items()}}
    tree |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
    if scaling.bounds == "exact":
        tree["truncate"] = False
    if scaling.mscale is not None:
        tree |= {"mscale": scaling.mscale, "mscale_all_dim": scaling.mscale_all_dim}
    return {"rope_type": "yarn", **tree}
