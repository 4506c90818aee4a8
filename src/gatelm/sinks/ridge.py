"""Linear regression with a penalty from sums over tokens: memory does not grow with the text."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from gatelm.nn.shapes import Float, Tensor

PENALTIES = (1.0, 10.0, 100.0, 1000.0)
"""Values of the penalty that held-out tokens choose among."""


@dataclass
class Sums:
    """Products of inputs (with a 1 behind them) and outputs, summed over tokens in float64."""

    xx: Tensor = field(default_factory=lambda: torch.zeros(()))
    xy: Tensor = field(default_factory=lambda: torch.zeros(()))
    yy: Tensor = field(default_factory=lambda: torch.zeros(()))
    y: Tensor = field(default_factory=lambda: torch.zeros(()))
    count: float = 0.0

    def add(self, x: Float[Tensor, "n D"], y: Float[Tensor, "n N"], weight: float = 1.0) -> None:
        """Count some tokens, each `weight` times."""
        x = torch.cat((x.double(), torch.ones(len(x), 1, dtype=torch.float64)), dim=1)
        y = y.double()
        self.xx = self.xx + weight * (x.T @ x)
        self.xy = self.xy + weight * (x.T @ y)
        self.yy = self.yy + weight * y.square().sum(dim=0)
        self.y = self.y + weight * y.sum(dim=0)
        self.count += weight * len(x)

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.xx + other.xx,
            self.xy + other.xy,
            self.yy + other.yy,
            self.y + other.y,
            self.count + other.count,
        )

    def solve(self, penalty: float) -> Float[Tensor, "E N"]:
        """The weights, bias last, that minimise squared errors + penalty |weights|^2."""
        lift = penalty * torch.eye(len(self.xx), dtype=torch.float64)
        lift[-1, -1] = 0.0
        return torch.linalg.solve(self.xx + lift, self.xy)

    def r2(self, solution: Float[Tensor, "E N"]) -> Float[Tensor, "N"]:
        """The share of each output's variance on these tokens that a solution explains."""
        errors = self.yy - 2 * (solution * self.xy).sum(dim=0)
        errors = errors + (solution * (self.xx @ solution)).sum(dim=0)
        return 1 - errors / (self.yy - self.y.square() / self.count).clamp(min=1e-12)


@dataclass(frozen=True)
class Fit:
    """A solution (bias last), the penalty that held-out tokens chose, and their R2 by output."""

    solution: Float[Tensor, "E N"]
    penalty: float
    r2: Float[Tensor, "N"]


def fit(train: Sums, held_out: Sums, pinned: Sums | None = None) -> Fit:
    """Choose the penalty on held-out tokens, then solve with all of them.

    pinned: tokens whose outputs must be met, counted heavily in both.
    """
    first = train if pinned is None else train + pinned
    scored = [(float(held_out.r2(first.solve(p)).mean()), p) for p in PENALTIES]
    _, penalty = max(scored)
    return Fit((first + held_out).solve(penalty), penalty, held_out.r2(first.solve(penalty)))
