"""Outliers of what attention adds to the residual stream (arXiv 2306.12929)."""

from __future__ import annotations

import torch

from gatelm.analysis.probe.layout import Layout
from gatelm.nn.shapes import Float, Tensor

OUTLIER_STD = 6.0


class OutputTotals:
    """W_o's output in one layer. Per sequence, over its tokens and channels without padding:
    max |y| (infinity norm), kurtosis, and the share of entries beyond 6 standard deviations of the
    mean; means over sequences. `largest` is over all of them."""

    FIELDS = ("max_abs", "kurtosis", "outliers")

    def __init__(self) -> None:
        self._sums = torch.zeros(len(self.FIELDS), dtype=torch.float64)
        self.num_sequences = 0
        self.largest = 0.0

    def add(self, y: Float[Tensor, "B T D"], layout: Layout) -> None:
        """Add one batch."""
        for row, valid in zip(y.float(), layout.valid, strict=True):
            kept = row[valid]
            if not kept.numel():
                continue
            largest = float(kept.abs().max())
            deviation = kept - kept.mean()
            variance = deviation.square().mean()
            kurtosis = float((deviation / variance.sqrt()).pow(4).mean())
            outliers = float((deviation.abs() > OUTLIER_STD * variance.sqrt()).float().mean())
            self._sums += torch.tensor([largest, kurtosis, outliers], dtype=torch.float64)
            self.largest = max(self.largest, largest)
            self.num_sequences += 1

    def mean(self, name: str) -> float:
        """Mean over sequences of one of `FIELDS`; NaN without any."""
        if not self.num_sequences:
            return float("nan")
        return float(self._sums[self.FIELDS.index(name)] / self.num_sequences)

    def summary(self) -> dict[str, float]:
        """The means of all `FIELDS` by name."""
        return {**{name: self.mean(name) for name in self.FIELDS}, "largest": self.largest}
