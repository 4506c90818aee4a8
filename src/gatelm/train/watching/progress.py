"""The progress of a run, as it reports it to its caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["data", "train", "eval", "health", "save", "analysis", "done"]


@dataclass(frozen=True)
class Progress:
    """A run's position, as reported at every step and phase."""

    step: int
    total_steps: int
    loss: float | None
    tokens_per_second: float | None
    phase: Phase
