"""Ranks of a set of vectors: effective rank, stable rank, participation ratio."""

from __future__ import annotations

import torch

from gatelm.analysis.statistics.precise import double
from gatelm.nn.shapes import Bool, Float, Tensor


class RankTotals:
    """Gram matrix of the vectors seen, in float64; the d singular values come from it.

    With s the singular values of the (tokens, d) matrix and p = s / sum s: effective rank
    exp(-sum p ln p) (Roy and Vetterli 2007), stable rank sum s^2 / max s^2, participation ratio
    (sum s^2)^2 / sum s^4. A sink or a massive channel dominates them unless the mean is taken off,
    so there are both.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self._gram = self._sum = torch.zeros(0, dtype=torch.float64)
        self._ranks: dict[str, float] = {}

    def add(self, vectors: Float[Tensor, "B T *N H"], where: Bool[Tensor, "B T"]) -> None:
        """Add the vectors of some tokens; axes after T are one vector."""
        rows = double(vectors.flatten(2)[where])
        self._ranks = {}
        if not self.num_tokens:
            width = rows.shape[-1]
            self._gram = torch.zeros(width, width, dtype=torch.float64)
            self._sum = torch.zeros(width, dtype=torch.float64)
        self.num_tokens += len(rows)
        self._gram.addmm_(rows.T, rows)
        self._sum += rows.sum(dim=0)

    @property
    def width(self) -> int:
        """Number of entries of a vector; 0 before any was added."""
        return len(self._sum)

    def ranks(self) -> dict[str, float]:
        """Ranks of the vectors, as they are and `_centred`, computed once; empty without any."""
        if self._ranks or not self.num_tokens:
            return self._ranks
        mean = self._sum / self.num_tokens
        centred = self._gram - self.num_tokens * torch.outer(mean, mean)
        self._ranks = {
            **_ranks(self._gram, ""),
            **_ranks(centred, "_centred"),
            "tokens": self.num_tokens,
            "width": self.width,
        }
        return self._ranks


def _ranks(gram: Float[Tensor, "d d"], suffix: str) -> dict[str, float]:
    if not bool(gram.isfinite().all()):
        values = torch.full((1,), float("nan"), dtype=torch.float64)
    else:
        values = torch.linalg.eigvalsh(gram)
        # Below this an eigenvalue is the rounding of the Gram matrix.
        noise = float(values[-1]) * len(values) * torch.finfo(torch.float64).eps
        values = values.clamp(min=0) * (values > noise)
    total = values.sum()
    sizes = values.sqrt()
    shares = sizes / sizes.sum()
    return {
        f"effective_rank{suffix}": float(torch.special.entr(shares).sum().exp()),
        f"stable_rank{suffix}": float(total / values.max()),
        f"participation_ratio{suffix}": float(total.square() / values.square().sum()),
    }
