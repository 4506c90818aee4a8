"""The nearest width, against a search over all of them."""

from __future__ import annotations

import pytest

from gatelm.study.planning.matching import nearest_width


@pytest.mark.parametrize("multiple", [1, 3, 8])
@pytest.mark.parametrize("target", [137, 500, 501, 4999])
def test_nearest_of_all(multiple, target):
    def cost(width):
        return 13 * width + width * width // 7

    widths = range(multiple, 600, multiple)
    best = min(abs(cost(w) - target) for w in widths if cost(multiple) <= target)
    assert abs(cost(nearest_width(cost, target, multiple)) - target) == best


def test_a_tie_takes_the_smaller():
    assert nearest_width(lambda width: 2 * width, 7, 1) == 3


def test_too_large_already():
    with pytest.raises(ValueError, match="already at width 8 it costs 80"):
        nearest_width(lambda width: 10 * width, 79, 8)


def test_no_effect():
    with pytest.raises(ValueError, match="does not change"):
        nearest_width(lambda width: 5, 10, 8)


@pytest.mark.parametrize("power", [1, 2, 3])
def test_few_costs_are_asked_where_they_grow_evenly(power):
    asked = []

    def cost(width):
        asked.append(width)
        return 1000 + 7 * width**power

    assert nearest_width(cost, 1000 + 7 * 4000**power, 8) == 4000
    assert len(asked) == len(set(asked)) <= (4 if power == 1 else 30)
