"""ALiBi: no positions but a penalty on distance (arXiv 2108.12409)."""

from __future__ import annotations

import math
from typing import Literal

from gatelm.config import Config


class AlibiConfig(Config):
    """ALiBi: each head's scores fall by its slope times the distance between query and key.

    The slopes are 2^(-8/N), 2^(-16/N), ... for N heads; where N is no power of two, those of the
    power below, then every second one of the power above. None is learned.
    """

    kind: Literal["alibi"] = "alibi"

    def slopes(self, num_heads: int) -> tuple[float, ...]:
        """Return the slope of each query head."""
        power = 2 ** math.floor(math.log2(num_heads))
        found = _geometric(power) + _geometric(2 * power)[::2]
        return found[:num_heads]


def _geometric(num_heads: int) -> tuple[float, ...]:
    return tuple(2.0 ** (-8.0 * (head + 1) / num_heads) for head in range(num_heads))
