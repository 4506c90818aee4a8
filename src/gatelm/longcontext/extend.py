"""A model's positions before and after its context is extended, as data and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from gatelm.config import ConfigError
from gatelm.config.base import nearest
from gatelm.longcontext.scaling import METHODS, rope_of, ropes, with_rope, with_scaling
from gatelm.nn.model import ModelConfig
from gatelm.nn.positions.rope import RopeConfig, rotary_frequencies
from gatelm.nn.positions.scaling import LongRopeScaling, RopeScaling

EXTENDING = (*METHODS, "longrope")
"""Values of `ExtendRequest.method`."""


@dataclass(frozen=True)
class ExtendRequest:
    """Request for an extension of a model's context.

    to_tokens: the new length. base: a new base, put in before the scaling. original_tokens: in
    place of what the model says it was trained on. settings: fields of the scaling other than its
    length and factor. existing: what becomes of a scaling of another kind that is there already.
    """

    to_tokens: int
    method: str = "yarn"
    base: float | None = None
    original_tokens: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    existing: Literal["refuse", "replace"] = "refuse"


@dataclass(frozen=True)
class Extension:
    """Result of an extension: the config to write, and changes (name, before, after) in words."""

    cfg: ModelConfig
    original_tokens: int
    to_tokens: int
    method: str
    changes: tuple[tuple[str, str, str], ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the extension as plain data, without the config."""
        return {
            "method": self.method,
            "original_tokens": self.original_tokens,
            "to_tokens": self.to_tokens,
            "changes": [{"what": w, "before": b, "after": a} for w, b, a in self.changes],
        }


def extend(cfg: ModelConfig, context_tokens: int | None, request: ExtendRequest) -> Extension:
    """Extend the positions of a model's config to longer texts.

    context_tokens: the length that the model states; None where it states none.

    Raises:
        ConfigError: no rotary positions, an unknown method, a length that is not longer, a scaling
            that is there already and of another kind.
    """
    if request.method not in EXTENDING:
        raise ConfigError(f"--method {request.method!r}: {nearest(request.method, EXTENDING)}")
    if cfg.position_embedding is not None:
        raise ConfigError(
            "the model has learned positions (position_embedding): no method here makes more of "
            "them; train a model with rope"
        )
    found = ropes(cfg)
    if not found:
        raise ConfigError(
            "the model has no rotary positions (mixer.rope), so there is nothing to scale: it "
            "reads any length as it is"
        )
    old = found[0].scaling
    original = request.original_tokens or _original(old, context_tokens)
    if request.to_tokens <= original:
        raise ConfigError(
            f"--to {request.to_tokens}: the model was trained on {original} tokens already; name a "
            "longer text, or its length in training with --original"
        )
    new_kind = request.method.removesuffix("_rotations")
    if old is not None and old.kind != new_kind and request.existing == "refuse":
        raise ConfigError(
            f"the model has a scaling already ({old.kind}, factor {old.factor:g}) and may have "
            f"been trained with it; use --method {old.kind}, or --replace-scaling to put "
            f"{request.method} in its place"
        )
    new = cfg if request.base is None else with_rope(cfg, base=request.base)
    new = with_scaling(new, _scaling(request, original, _rotary_dim(cfg)))
    changes = _changes(cfg, new, context_tokens, request.to_tokens)
    return Extension(new, original, request.to_tokens, request.method, changes)


def described(cfg: ModelConfig, context_tokens: int | None) -> dict[str, str]:
    """Describe positions in words, one entry per fact."""
    (rope, width) = _first(cfg)
    out = {
        "context": "not stated" if context_tokens is None else f"{context_tokens:,} tokens",
        "rope base": f"{rope.base:g}",
        "scaling": "none",
    }
    if rope.scaling is not None:
        values = rope.scaling.tree()
        out["scaling"] = str(values.pop("kind"))
        for name in ("original_tokens", "factor"):
            if (value := values.pop(name)) is not None:
                out[name.replace("_", " ")] = f"{value:g}" if name == "factor" else f"{value:,}"
        for name, value in values.items():
            if value is not None:
                out[name] = _short(value)
    out["factor on cos and sin"] = f"{rope.amplitude:.6g}"
    length = context_tokens or 1
    out["slowest pair turns once in"] = f"{2 * math.pi / float(_at(rope, width, length)[-1]):,.0f}"
    out["pairs slowed"] = _slowed(rope, width, length)
    kinds = len(ropes(cfg))
    if kinds > 1:
        out["layers"] = f"{kinds} kinds of positions; the first is described"
    return out


def _changes(
    old: ModelConfig, new: ModelConfig, before_tokens: int | None, after_tokens: int
) -> tuple[tuple[str, str, str], ...]:
    before, after = described(old, before_tokens), described(new, after_tokens)
    names = list(dict.fromkeys([*before, *after]))
    return tuple((name, before.get(name, "-"), after.get(name, "-")) for name in names)


def _original(scaling: RopeScaling | None, context_tokens: int | None) -> int:
    if scaling is not None and scaling.original_tokens is not None:
        return scaling.original_tokens
    if scaling is not None:
        raise ConfigError(
            f"the model has a scaling ({scaling.kind}, factor {scaling.factor:g}) that does not "
            "say what length it was trained on; name it with --original"
        )
    if context_tokens is None:
        raise ConfigError(
            "the model does not state its context (max_position_embeddings); name the length it "
            "was trained on with --original"
        )
    return context_tokens


def _scaling(request: ExtendRequest, original: int, rotary_dim: int) -> RopeScaling | None:
    factor = request.to_tokens / original
    settings = dict(request.settings)
    where = f"--method {request.method}"
    if request.method == "longrope":
        if missing := {"short_factors", "long_factors"} - set(settings):
            raise ConfigError(
                f"{where}: needs {' and '.join(sorted(missing))} ({rotary_dim // 2} numbers each), "
                "which come from a search; give them with --set"
            )
        return LongRopeScaling.parse(
            {"original_tokens": original, "factor": factor, **settings}, where
        )
    scaling = METHODS[request.method](original, factor)
    if not settings:
        return scaling
    if scaling is None:
        raise ConfigError(f"{where}: has no settings; leave out {', '.join(sorted(settings))}")
    return type(scaling).parse({**scaling.tree(), **settings}, where)


def _first(cfg: ModelConfig) -> tuple[RopeConfig, int]:
    for layer in cfg.layers():
        rope = rope_of(layer.mixer)
        if rope is not None:
            mixer: Any = layer.mixer
            return rope, mixer.width(cfg.hidden_dim)
    raise AssertionError("no rotary positions")


def _rotary_dim(cfg: ModelConfig) -> int:
    rope, width = _first(cfg)
    return rope.rotary_dim(width)


def _at(rope: RopeConfig, width: int, length: int) -> torch.Tensor:
    found = rotary_frequencies(rope, width, torch.arange(length - 1, length))
    return found[-1] if found.dim() == 2 else found


def _slowed(rope: RopeConfig, width: int, length: int) -> str:
    """Say how many pairs turn slower than without the scaling, and by which factor."""
    plain = _at(rope.replace(scaling=None), width, length)
    ratio = (plain / _at(rope, width, length)).tolist()
    moved = [each for each in ratio if abs(each - 1) > 1e-4]
    if not moved:
        return f"0 of {len(ratio)}"
    return f"{len(moved)} of {len(ratio)}, {min(moved):.3g} to {max(moved):.3g} times"


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} numbers, {min(value):.4g} to {max(value):.4g}"
    return f"{value:g}" if isinstance(value, float) else str(value)
