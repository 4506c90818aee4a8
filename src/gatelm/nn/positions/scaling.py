"""How rotary frequencies change for texts longer than a model was trained on.

Every method says the same with the same words: a model trained on `original_tokens` is to read
`original_tokens` times `factor`. D is the number of channels that turn, and pair i turns by
base^(-2i/D) a token before scaling.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, model_validator

from gatelm.config import Config, ConfigError
from gatelm.nn.shapes import Float, Int, Tensor


def plain_frequencies(
    base: float, rotary_dim: int, device: torch.device | None = None
) -> Float[Tensor, " R"]:
    """Compute base^(-2i/D), always in float32."""
    exponent = torch.arange(0, rotary_dim, 2, device=device, dtype=torch.float32)
    return base ** (-exponent / rotary_dim)


class _Scaling(Config):
    length_dependent: ClassVar[bool] = False
    """Whether frequencies depend on how long the text is so far."""

    factor: float = Field(ge=1)
    """The new length over the original one."""

    @property
    def amplitude(self) -> float:
        """Factor on cos and sin; q and k have it, so the scores get its square."""
        return 1.0

    def check(self, rotary_dim: int, where: str) -> None:
        """Raises ConfigError, naming `where`, for heads that cannot be scaled like this."""

    def frequencies(
        self, base: float, rotary_dim: int, lengths: Int[Tensor, "*B T"]
    ) -> Float[Tensor, "*B T R"] | Float[Tensor, " R"]:
        """Return the radians per token of each pair.

        lengths: tokens of the text that each token stands in, so far; the methods that move with
            length give every token its own frequencies.
        """
        raise NotImplementedError


class _FromAnyLength(_Scaling):
    original_tokens: int | None = Field(default=None, ge=1)
    """The length the model was trained on: kept for the record, no frequency depends on it."""


class _FromLength(_Scaling):
    original_tokens: int = Field(ge=1)
    """The length the model was trained on; frequencies depend on it."""


class LinearScaling(_FromAnyLength):
    """Position interpolation (arXiv 2306.15595): positions m become m / factor."""

    kind: Literal["linear"] = "linear"

    def frequencies(
        self, base: float, rotary_dim: int, lengths: Int[Tensor, "*B T"]
    ) -> Float[Tensor, " R"]:
        """Return the plain frequencies, divided by the factor."""
        return plain_frequencies(base, rotary_dim, lengths.device) / self.factor


class NtkScaling(_FromAnyLength):
    """NTK-aware scaling: base becomes base * factor^(D/(D-2)) (arXiv 2309.00071, section 3.1).

    The slowest pair turns `factor` times slower, the fastest one as before.
    """

    kind: Literal["ntk"] = "ntk"

    def check(self, rotary_dim: int, where: str) -> None:
        """Raises ConfigError, naming `where`, for heads that cannot be scaled like this."""
        _needs_two_pairs(self.kind, rotary_dim, where)

    def scaled_base(self, base: float, rotary_dim: int) -> float:
        """Return the base that this scaling amounts to."""
        return base * self.factor ** (rotary_dim / (rotary_dim - 2))

    def frequencies(
        self, base: float, rotary_dim: int, lengths: Int[Tensor, "*B T"]
    ) -> Float[Tensor, " R"]:
        """Return the plain frequencies of the scaled base."""
        return plain_frequencies(self.scaled_base(base, rotary_dim), rotary_dim, lengths.device)


class DynamicNtkScaling(_FromLength):
    """NTK-aware scaling by as much as the text so far needs; `factor` says how far it may go.

    With l the length so far and L the original one, base becomes
    base * max(1, alpha l/L - (alpha - 1))^(D/(D-2)). alpha 1 is l/L, as arXiv 2309.00071
    (section 3.3) has it; other libraries call it `factor`.
    """

    length_dependent: ClassVar[bool] = True

    kind: Literal["dynamic_ntk"] = "dynamic_ntk"
    alpha: float = Field(default=1.0, ge=1)

    def check(self, rotary_dim: int, where: str) -> None:
        """Raises ConfigError, naming `where`, for heads that cannot be scaled like this."""
        _needs_two_pairs(self.kind, rotary_dim, where)

    def frequencies(
        self, base: float, rotary_dim: int, lengths: Int[Tensor, "*B T"]
    ) -> Float[Tensor, "*B T R"]:
        """Return for each token the frequencies of the base that its text's length needs."""
        grown = self.alpha * lengths.to(torch.float32) / self.original_tokens - (self.alpha - 1)
        bases = base * grown.clamp(min=1.0) ** (rotary_dim / (rotary_dim - 2))
        exponent = torch.arange(0, rotary_dim, 2, device=lengths.device, dtype=torch.float32)
        return bases[..., None] ** (-exponent / rotary_dim)


class YarnScaling(_FromLength):
    """YaRN (arXiv 2309.00071): slow pairs are interpolated, fast ones left, scores sharpened."""

    kind: Literal["yarn"] = "yarn"
    ramp: Literal["index", "rotations"] = "index"
    """Between interpolated and left pairs, linear in the pair's index (the code in circulation) or
    in its rotations within `original_tokens` (the paper's equations 18 and 19)."""
    beta_fast: float = Field(default=32.0, gt=0)
    """Rotations within the original length from which a pair is left as it is."""
    beta_slow: float = Field(default=1.0, gt=0)
    """Rotations up to which a pair is interpolated by the whole factor."""
    bounds: Literal["whole", "exact"] = "whole"
    """whole: the ends of the index ramp are rounded outwards to whole pairs (`truncate` true)."""
    attention_factor: float | None = Field(default=None, gt=0)
    """Factor on cos and sin; None: 0.1 ln(factor) + 1, or what the two mscales say."""
    mscale: float | None = Field(default=None, gt=0)
    """The amplitude is (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1)."""
    mscale_all_dim: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _check(self) -> YarnScaling:
        if self.beta_fast <= self.beta_slow:
            raise ValueError(
                f"beta_fast {self.beta_fast:g} must be more than beta_slow {self.beta_slow:g}"
            )
        if (self.mscale is None) != (self.mscale_all_dim is None):
            raise ValueError("mscale and mscale_all_dim: set both or none")
        if self.mscale is not None and self.attention_factor is not None:
            raise ValueError("attention_factor and mscale say the same twice; remove one")
        if self.ramp == "rotations" and self.bounds != "whole":
            raise ValueError("bounds has no effect with ramp rotations; remove it")
        return self

    @property
    def amplitude(self) -> float:
        """The attention factor, else what the factor and the mscales give."""
        if self.attention_factor is not None:
            return self.attention_factor
        log = 0.1 * math.log(self.factor)
        if self.mscale is not None and self.mscale_all_dim is not None:
            return (self.mscale * log + 1.0) / (self.mscale_all_dim * log + 1.0)
        return log + 1.0

    def frequencies(
        self, base: float, rotary_dim: int, lengths: Int[Tensor, "*B T"]
    ) -> Float[Tensor, " R"]:
        """Mix interpolated and plain frequencies by the ramp."""
        plain = plain_frequencies(base, rotary_dim, lengths.device)
        if self.ramp == "rotations":
            rotations = self.original_tokens * plain / (2 * math.pi)
            kept = (rotations - self.beta_slow) / (self.beta_fast - self.beta_slow)
        else:
            first, last = self._ramp(base, rotary_dim)
            index = torch.arange(len(plain), device=plain.device, dtype=torch.float32)
            kept = 1.0 - (index - first) / (last - first)
        kept = kept.clamp(0.0, 1.0)
        return plain / self.factor * (1.0 - kept) + plain * kept

    def _ramp(self, base: float, rotary_dim: int) -> tuple[float, float]:
        """Return the pairs, as real numbers, that turn `beta_fast` and `beta_slow` times."""

        def pair(rotations: float) -> float:
            turns = self.original_tokens / (rotations * 2 * math.pi)
            return rotary_dim * math.log(turns) / (2 * math.log(base))

        first, last = pair(self.beta_fast), pair(self.beta_slow)
        if self.bounds == "whole":
            first, last = math.floor(first), math.ceil(last)
        first, last = max(float(first), 0.0), min(float(last), rotary_dim - 1.0)
        return first, last if last != first else last + 0.001


class LongRopeScaling(_FromLength):
    """LongRoPE (arXiv 2402.13753): pair i turns slower by a factor of its own, found by search.

    The short factors serve texts up to the original length, the long ones those beyond.
    """

    length_dependent: ClassVar[bool] = True

    kind: Literal["longrope"] = "longrope"
    short_factors: tuple[float, ...]
    """One for each pair."""
    long_factors: tuple[float, ...]
    """One for each pair."""
    attention_factor: float | None = Field(default=None, gt=0)
    """Factor on cos and sin; None: sqrt(1 + ln(factor) / ln(original_tokens))."""

    @model_validator(mode="after")
    def _check(self) -> LongRopeScaling:
        for name in ("short_factors", "long_factors"):
            if any(not value > 0 for value in getattr(self, name)):
                raise ValueError(f"{name}: must be positive")
        return self

    @property
    def amplitude(self) -> float:
        """The attention factor, else what the factor and the original length give."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1.0:
            return 1.0
        return math.sqrt(1.0 + math.log(self.factor) / math.log(self.original_tokens))

    def check(self, rotary_dim: int, where: str) -> None:
        """Raises ConfigError, naming `where`, for heads that cannot be scaled like this."""
        for name in ("short_factors", "long_factors"):
            if (given := len(getattr(self, name))) != rotary_dim // 2:
                raise ConfigError(
                    f"{where}.{name}: {given} factors, but {rotary_dim // 2} pairs of channels turn"
                )

    def frequencies(
        self, base: float, rotary_dim: int, lengths: Int[Tensor, "*B T"]
    ) -> Float[Tensor, "*B T R"]:
        """Return for each token the plain frequencies divided by the short or the long factors."""
        plain = plain_frequencies(base, rotary_dim, lengths.device)
        short, long = (
            plain / torch.tensor(factors, device=plain.device, dtype=torch.float32)
            for factors in (self.short_factors, self.long_factors)
        )
        return torch.where((lengths > self.original_tokens)[..., None], long, short)


class Llama3Scaling(_FromLength):
    """Llama 3.1's scaling: as YaRN's paper ramp, over wavelengths, without its amplitude."""

    kind: Literal["llama3"] = "llama3"
    low_freq_factor: float = Field(default=1.0, gt=0)
    """Rotations within the original length up to which a pair is interpolated by the factor."""
    high_freq_factor: float = Field(default=4.0, gt=0)
    """Rotations from which a pair is left as it is."""

    @model_validator(mode="after")
    def _check(self) -> Llama3Scaling:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor {self.high_freq_factor:g} must be more than low_freq_factor "
                f"{self.low_freq_factor:g}"
            )
        return self

    def frequencies(
        self, base: float, rotary_dim: int, lengths: Int[Tensor, "*B T"]
    ) -> Float[Tensor, " R"]:
        """Mix interpolated and plain frequencies by rotations."""
        plain = plain_frequencies(base, rotary_dim, lengths.device)
        rotations = self.original_tokens * plain / (2 * math.pi)
        span = self.high_freq_factor - self.low_freq_factor
        kept = ((rotations - self.low_freq_factor) / span).clamp(0.0, 1.0)
        return plain / self.factor * (1.0 - kept) + plain * kept


RopeScaling = Annotated[
    LinearScaling | NtkScaling | DynamicNtkScaling | YarnScaling | LongRopeScaling | Llama3Scaling,
    Field(discriminator="kind"),
]


def _needs_two_pairs(kind: str, rotary_dim: int, where: str) -> None:
    if rotary_dim <= 2:
        raise ConfigError(
            f"{where}: {kind} spreads a factor over the pairs of a head and needs two or more, not "
            f"{rotary_dim // 2}; use linear"
        )
