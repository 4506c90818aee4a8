"""What a metric is: a name with its definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """name: the key in result.json. better: the direction a reader hopes for, None if neither."""

    name: str
    label: str
    definition: str
    better: Literal["lower", "higher"] | None = None
    unit: str | None = None
