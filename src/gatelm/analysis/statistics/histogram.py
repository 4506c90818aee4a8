"""A histogram whose range grows with the data."""

from __future__ import annotations

import torch

from gatelm.nn.shapes import Tensor


class StreamingHistogram:
    """Counts in `num_bins` equal bins; the range starts at 0..1 and doubles until a value fits.

    Non-finite values are counted apart in `num_nonfinite`.
    """

    def __init__(self, num_bins: int = 2048):
        self.low, self.high = 0.0, 1.0
        self.counts = torch.zeros(num_bins, dtype=torch.float64)
        self.num_nonfinite = 0

    def add(self, values: Tensor) -> None:
        """Count every element."""
        values = values.detach().float().flatten()
        finite = values[values.isfinite()]
        self.num_nonfinite += values.numel() - finite.numel()
        if not finite.numel():
            return
        self._reach(float(finite.min()), float(finite.max()))
        bins = len(self.counts)
        scaled = (finite - self.low) * (bins / (self.high - self.low))
        index = scaled.long().clamp(0, bins - 1)
        self.counts += torch.bincount(index, minlength=bins).double().cpu()

    def _reach(self, smallest: float, largest: float) -> None:
        while smallest < self.low or largest > self.high:
            merged = self.counts.view(-1, 2).sum(dim=1)
            empty = torch.zeros_like(merged)
            width = self.high - self.low
            if smallest < self.low:
                self.low -= width
                self.counts = torch.cat((empty, merged))
            else:
                self.high += width
                self.counts = torch.cat((merged, empty))

    def quantile(self, q: float) -> float:
        """Value below which a share q of the counts lies, to within a bin; NaN when empty."""
        total = float(self.counts.sum())
        if not total:
            return float("nan")
        below = self.counts.cumsum(0)
        bin_index = int(torch.searchsorted(below, q * total).clamp(max=len(below) - 1))
        before = float(below[bin_index - 1]) if bin_index else 0.0
        inside = (q * total - before) / max(float(self.counts[bin_index]), 1.0)
        width = (self.high - self.low) / len(self.counts)
        return self.low + width * (bin_index + min(max(inside, 0.0), 1.0))

    def binned(self, num_bins: int) -> tuple[list[float], list[int]]:
        """Edges (num_bins + 1) and counts in coarser bins; num_bins divides the fine ones."""
        coarse = self.counts.view(num_bins, -1).sum(dim=1)
        edges = torch.linspace(self.low, self.high, num_bins + 1, dtype=torch.float64)
        return edges.tolist(), [int(count) for count in coarse]
