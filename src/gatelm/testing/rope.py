"""The naive twin of rotary frequencies: one pair at a time, in plain numbers."""

from __future__ import annotations

import math

from gatelm.nn.positions.rope import RopeConfig
from gatelm.nn.positions.scaling import (
    DynamicNtkScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NtkScaling,
    YarnScaling,
)


def reference_frequency(cfg: RopeConfig, pair: int, rotary_dim: int, length: int) -> float:
    """Return the radians per token of one pair, in a text of `length` tokens so far."""
    scaling, base, exponent = cfg.scaling, cfg.base, 2 * pair / rotary_dim
    plain = base**-exponent
    grown = rotary_dim / (rotary_dim - 2) if rotary_dim > 2 else 1.0
    if scaling is None:
        return plain
    if isinstance(scaling, LinearScaling):
        return plain / scaling.factor
    if isinstance(scaling, NtkScaling):
        return (base * scaling.factor**grown) ** -exponent
    if isinstance(scaling, DynamicNtkScaling):
        times = scaling.alpha * length / scaling.original_tokens - scaling.alpha + 1
        return (base * max(1.0, times) ** grown) ** -exponent
    if isinstance(scaling, LongRopeScaling):
        beyond = length > scaling.original_tokens
        return plain / (scaling.long_factors if beyond else scaling.short_factors)[pair]
    rotations = scaling.original_tokens * plain / (2 * math.pi)
    if isinstance(scaling, Llama3Scaling):
        slow, fast = scaling.low_freq_factor, scaling.high_freq_factor
        return _mixed(plain, scaling.factor, (rotations - slow) / (fast - slow))
    assert isinstance(scaling, YarnScaling)
    if scaling.ramp == "rotations":
        slow, fast = scaling.beta_slow, scaling.beta_fast
        return _mixed(plain, scaling.factor, (rotations - slow) / (fast - slow))
    ends = []
    for turns, whole in ((scaling.beta_fast, math.floor), (scaling.beta_slow, math.ceil)):
        # the pair whose wavelength fits `turns` times into the original length
        end = math.log(scaling.original_tokens / (2 * math.pi * turns), base) * rotary_dim / 2
        ends.append(whole(end) if scaling.bounds == "whole" else end)
    first, last = max(ends[0], 0), min(ends[1], rotary_dim - 1)
    if first == last:
        last += 0.001
    return _mixed(plain, scaling.factor, 1 - (pair - first) / (last - first))


def _mixed(plain: float, factor: float, kept: float) -> float:
    kept = min(max(kept, 0.0), 1.0)
    return kept * plain + (1 - kept) * plain / factor
