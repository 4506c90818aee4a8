"""Massive activations and token norms of the residual stream, over many batches."""

from __future__ import annotations

import torch

from gatelm.analysis.probe.layout import Layout
from gatelm.analysis.statistics.precise import double
from gatelm.nn.shapes import Float, Tensor


class NormRatio:
    """The first token's norm against the other tokens' mean, per head (arXiv 2410.10781).

    Means over documents and tokens first, then the ratio.
    """

    def __init__(self) -> None:
        self._first = self._rest = torch.zeros((), dtype=torch.float64)
        self._num_first = self._num_rest = 0

    def add(self, vectors: Float[Tensor, "B T *N H"], layout: Layout) -> None:
        """Add (B,T,...,H); the ratio has the shape of the axes between T and H."""
        norms = double(vectors.float().norm(dim=-1))
        begins, rest = layout.begins.cpu(), (layout.valid & ~layout.begins).cpu()
        self._first = self._first + norms[begins].sum(dim=0)
        self._rest = self._rest + norms[rest].sum(dim=0)
        self._num_first += int(begins.sum())
        self._num_rest += int(rest.sum())

    def ratio(self) -> Tensor:
        """The ratio; NaN if there were no first tokens or no other tokens."""
        if not self._num_first or not self._num_rest:
            return torch.full_like(self._first, float("nan"))
        return (self._first / self._num_first) / (self._rest / self._num_rest)


class ResidualTotals:
    """The residual stream after one layer (or the embedding): each sequence's largest and median
    |h| over all its tokens and channels, their ratio and the kurtosis of h; padding left out."""

    FIELDS = ("max_abs", "median_abs", "ratio", "kurtosis")

    def __init__(self) -> None:
        self._sums = torch.zeros(len(self.FIELDS), dtype=torch.float64)
        self.num_sequences = 0
        self.norm_ratio = NormRatio()
        self.max_abs_overall = 0.0
        self.largest_at: tuple[int, int] = (0, 0)

    def add(self, resid: Float[Tensor, "B T D"], layout: Layout) -> None:
        """Add one batch."""
        self.norm_ratio.add(resid, layout)
        padded = not bool(layout.valid.all())
        for b, row in enumerate(resid.float()):
            row = row[layout.valid[b]] if padded else row
            if row.numel():
                self._add_sequence(row, layout.position[b][layout.valid[b]])

    def _add_sequence(self, row: Float[Tensor, "T D"], position: Tensor) -> None:
        size = row.abs()
        largest = float(size.max())
        if largest > self.max_abs_overall:
            token, channel = divmod(int(size.argmax()), row.shape[1])
            self.max_abs_overall = largest
            self.largest_at = (int(position[token]), channel)
        squares = (row - row.mean()).square()
        kurtosis = float(squares.square().mean() / squares.mean().square())
        median = float(size.median())
        ratio = largest / median if median else float("nan")
        self._sums += torch.tensor([largest, median, ratio, kurtosis], dtype=torch.float64)
        self.num_sequences += 1

    def mean(self, name: str) -> float:
        """Mean over sequences of one of `FIELDS`."""
        if not self.num_sequences:
            return float("nan")
        return float(self._sums[self.FIELDS.index(name)] / self.num_sequences)
