import math

import pytest

from gatelm.study.results.numbers import (
    MINUS,
    MISSING,
    column,
    common_decimals,
    decimals_for,
    duration,
    fixed,
    interval,
    percent,
    rounded,
    short,
)


@pytest.mark.parametrize(
    ("value", "decimals", "sign", "text"),
    [
        (3.14159, 2, False, "3.14"),
        (-0.0315, 3, True, f"{MINUS}0.032"),
        (0.0315, 3, True, "+0.032"),
        (-0.0001, 3, True, "0.000"),  # no sign on what is printed as zero
        (1184256.4, 0, False, "1,184,256"),
        (None, 2, False, MISSING),
        (math.nan, 2, False, MISSING),
        (True, 2, False, MISSING),
    ],
)
def test_fixed(value: object, decimals: int, sign: bool, text: str) -> None:
    assert fixed(value, decimals, sign=sign) == text


def test_digits_follow_the_spread() -> None:
    assert decimals_for(0.012, 3.4) == 3
    assert decimals_for(12.0, 95.0) == 0
    assert decimals_for(None, 3.4123) == 2
    assert decimals_for(None, 0.0) == 2
    assert decimals_for(1e-9, 3.4) == 4  # a tiny spread does not print digits nobody reads


def test_a_column_has_the_same_decimals() -> None:
    assert column([0.9479, 0.06318, None, 0.9395]) == ["0.9479", "0.0632", MISSING, "0.9395"]
    assert common_decimals([None, None]) == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3.21, "3.2 s"), (59, "59 s"), (66, "1 min 06 s"), (7620, "2 h 07 min"), (None, MISSING)],
)
def test_duration(seconds: object, text: str) -> None:
    assert duration(seconds) == text


def test_interval_percent_short_rounded() -> None:
    assert interval(-0.05, 0.012, 2, sign=True) == f"{MINUS}0.05 to +0.01"
    assert interval(None, 1.0, 2) == MISSING
    assert percent(0.95) == "95 %"
    assert short(0.05944) == "0.0594"
    assert short(1184256) == "1,184,256"
    assert short(3.2e-7) == f"3.2e{MINUS}07"
    assert rounded(0.123456) == 0.1235
    assert rounded(math.inf) is None
