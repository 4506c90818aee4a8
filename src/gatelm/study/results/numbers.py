"""Numbers as text for every table, sentence, chart and report.

Two styles: pages and documents have a true minus sign, thousands separators and a dash for what is
missing (`fixed`, `short`, `interval`); the terminal and the sentences of results.json are plain
ASCII (`decimals`, `bracketed`, `p_text`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeGuard

MISSING = "–"  # noqa: RUF001
MINUS = "\N{MINUS SIGN}"


def is_number(value: object) -> TypeGuard[float]:
    """True for a finite int or float (a bool is no number)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def mean(values: Iterable[object]) -> float | None:
    """Return the mean of the numbers among `values`; None if there is none."""
    numbers = [float(value) for value in values if is_number(value)]
    return sum(numbers) / len(numbers) if numbers else None


def decimals_for(spread: float | None, value: float, digits: int = 3) -> int:
    """Return decimals that keep two digits of `spread`, or without one `digits` of `value`."""
    if spread is not None and is_number(spread) and spread > 0:
        places = 1 - math.floor(math.log10(spread))
        # A spread far below the value would print digits nobody reads.
        return max(0, min(places, 6, max(3, decimals_for(None, value, 5))))
    if not is_number(value) or value == 0:
        return digits - 1
    return max(0, min(digits - 1 - math.floor(math.log10(abs(value))), 6))


def half_width(low: float | None, high: float | None) -> float | None:
    """Return half of an interval's width, the `spread` of `decimals_for`, or None."""
    return None if low is None or high is None else (high - low) / 2


def common_decimals(wanted: Iterable[int | None]) -> int:
    """Return decimals for numbers that stand together: the median of each one's own."""
    known = sorted(places for places in wanted if places is not None)
    return known[len(known) // 2] if known else 0


def column(values: Iterable[object], digits: int = 4) -> list[str]:
    """Format numbers with the same decimals, for reading down a column."""
    values = list(values)
    places = common_decimals(decimals_for(None, v, digits) for v in values if is_number(v))
    return [fixed(value, places) for value in values]


def fixed(value: object, decimals: int, *, sign: bool = False) -> str:
    """Format `value` with `decimals` decimals; `sign` prints a plus too."""
    if not is_number(value):
        return MISSING
    number = round(float(value), decimals)
    if abs(number) >= 1e7:
        text = f"{number:{'+' if sign else ''}.3g}"
    else:
        text = f"{number:{'+' if sign and number else ''},.{decimals}f}"
    return text.replace("-", MINUS) if number else text.replace("-", "")


def short(value: object, digits: int = 3, *, sign: bool = False) -> str:
    """Format `value` with about `digits` significant digits; a dash if it is no number."""
    if not is_number(value):
        return MISSING
    if isinstance(value, int):
        return f"{value:+,}".replace("-", MINUS) if sign else count(value)
    if value and abs(value) < 1e-5:
        return f"{value:{'+' if sign else ''}.1e}".replace("-", MINUS)
    return fixed(value, decimals_for(None, value, digits), sign=sign)


def count(value: object) -> str:
    """Format a whole number with thousands separators."""
    return f"{round(value):,}".replace("-", MINUS) if is_number(value) else MISSING


def interval(low: object, high: object, decimals: int, *, sign: bool = False) -> str:
    """Format `low to high`, or a dash if either end is missing."""
    if not (is_number(low) and is_number(high)):
        return MISSING
    return f"{fixed(low, decimals, sign=sign)} to {fixed(high, decimals, sign=sign)}"


def percent(fraction: object) -> str:
    """Format 0.95 as `95 %`."""
    return f"{100 * float(fraction):g} %" if is_number(fraction) else MISSING


def duration(seconds: object) -> str:
    """Format seconds as `42 s`, `3 min 05 s` or `2 h 07 min`."""
    if not is_number(seconds):
        return MISSING
    whole = round(seconds)
    if whole < 60:
        return f"{float(seconds):.1f} s" if whole < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def rounded(value: object, digits: int = 4) -> float | None:
    """Round `value` to `digits` significant digits for a chart's data; None if it is no number."""
    return float(f"{float(value):.{digits}g}") if is_number(value) else None


def decimals(value: float, low: float | None = None, high: float | None = None) -> int:
    """Decimals that show two digits of an interval's half width, or of the value without one; at
    least 3 below 10, 2 below 100, 1 above, at most 6."""
    scale = half_width(low, high) or abs(value)
    size = max(abs(v) for v in (value, low, high) if v is not None)
    least = 3 if size < 10 else 2 if size < 100 else 1
    return min(6, max(least, 1 - math.floor(math.log10(scale)))) if scale else least


def bracketed(
    value: float, low: float | None, high: float | None, *, sign: bool = False
) -> tuple[str, str]:
    """Format `-0.031` and `[-0.050, -0.012]`; the latter is empty without an interval."""
    style = f"{'+' if sign else ''}.{decimals(value, low, high)}f"
    ends = "" if low is None or high is None else f"[{low:{style}}, {high:{style}}]"
    return f"{value:{style}}", ends


def p_text(p_value: float) -> str:
    """Format a p value with two digits."""
    return "<0.0001" if p_value < 1e-4 else f"{p_value:.2g}"


def si(value: float) -> str:
    """Format three digits with an SI prefix: `1.72G`, `950k`."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.3g}"
