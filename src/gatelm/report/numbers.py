"""Numbers as a reader wants them: few digits, a true minus sign, the same digits in a column."""

from __future__ import annotations

import math
from collections.abc import Iterable

MISSING = "–"  # noqa: RUF001
MINUS = "\N{MINUS SIGN}"


def is_number(value: object) -> bool:
    """True for a finite int or float (a bool is no number)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def decimals_for(spread: float | None, value: float, digits: int = 3) -> int:
    """Decimals that keep two significant digits of `spread`, or without one `digits` of `value`."""
    if spread is not None and is_number(spread) and spread > 0:
        places = 1 - math.floor(math.log10(spread))
        # A spread far below the value would print digits nobody reads.
        return max(0, min(places, 6, max(3, decimals_for(None, value, 5))))
    if not is_number(value) or value == 0:
        return digits - 1
    return max(0, min(digits - 1 - math.floor(math.log10(abs(value))), 6))


def common_decimals(wanted: Iterable[int | None]) -> int:
    """Decimals for numbers that stand together: the median of what each would take alone."""
    known = sorted(places for places in wanted if places is not None)
    return known[len(known) // 2] if known else 0


def column(values: Iterable[object], digits: int = 4) -> list[str]:
    """Numbers with the same decimals, so that they can be read down a column."""
    values = list(values)
    wanted = (decimals_for(None, float(v), digits) for v in values if is_number(v))  # type: ignore[arg-type]
    places = common_decimals(wanted)
    return [fixed(value, places) for value in values]


def fixed(value: object, decimals: int, *, sign: bool = False) -> str:
    """`value` with that many decimals; `sign` prints a plus too."""
    if not is_number(value):
        return MISSING
    number = round(float(value), decimals)  # type: ignore[arg-type]
    if abs(number) >= 1e7:
        text = f"{number:{'+' if sign else ''}.3g}"
    else:
        text = f"{number:{'+' if sign and number else ''},.{decimals}f}"
    return text.replace("-", MINUS) if number else text.replace("-", "")


def short(value: object, digits: int = 3, *, sign: bool = False) -> str:
    """`value` with about `digits` significant digits; a dash when there is no number."""
    if not is_number(value):
        return MISSING
    if isinstance(value, int):
        return f"{value:+,}".replace("-", MINUS) if sign else count(value)
    number = float(value)  # type: ignore[arg-type]
    if number and abs(number) < 1e-5:
        return f"{number:{'+' if sign else ''}.1e}".replace("-", MINUS)
    return fixed(number, decimals_for(None, number, digits), sign=sign)


def count(value: object) -> str:
    """A whole number with thousands separators."""
    return f"{round(value):,}".replace("-", MINUS) if is_number(value) else MISSING  # type: ignore[arg-type]


def interval(low: object, high: object, decimals: int, *, sign: bool = False) -> str:
    """`low to high`, or a dash when either end is missing."""
    if not (is_number(low) and is_number(high)):
        return MISSING
    return f"{fixed(low, decimals, sign=sign)} to {fixed(high, decimals, sign=sign)}"


def percent(fraction: object) -> str:
    """0.95 as `95 %`."""
    return f"{100 * float(fraction):g} %" if is_number(fraction) else MISSING  # type: ignore[arg-type]


def duration(seconds: object) -> str:
    """Seconds as `42 s`, `3 min 05 s` or `2 h 07 min`."""
    if not is_number(seconds):
        return MISSING
    whole = round(seconds)  # type: ignore[call-overload]
    if whole < 60:
        return f"{float(seconds):.1f} s" if whole < 10 else f"{whole} s"  # type: ignore[arg-type]
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def rounded(value: object, digits: int = 4) -> float | None:
    """`value` to so many significant digits for a chart's data, None when it is no number."""
    if not is_number(value):
        return None
    return float(f"{float(value):.{digits}g}")  # type: ignore[arg-type]
