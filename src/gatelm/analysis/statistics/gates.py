"""Statistics of one gate's scores over many batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gatelm.analysis.probe.layout import Layout
from gatelm.analysis.statistics.histogram import StreamingHistogram
from gatelm.analysis.statistics.precise import double
from gatelm.nn.shapes import Bool, Float, Tensor

HISTOGRAM_BINS = 64

ALWAYS = 0.99
"""Share of a head's scores from which it is dead (below 0.1) or always open (above 0.9)."""


class GateTotals:
    """Sums of scores (B,T,L,W): L scored heads, W channels of a head, or 1.

    Every mean is over tokens (padding left out), heads and channels alike.
    """

    def __init__(self) -> None:
        self.histogram = StreamingHistogram()
        self.tokens = 0
        self._sum = self._sum_squares = torch.zeros(0, dtype=torch.float64)
        self._below: dict[str, Tensor] = {}
        self._subsets: dict[str, tuple[float, int]] = {}

    def add(
        self,
        scores: Float[Tensor, "B T L W"],
        layout: Layout,
        marks: Mapping[str, Bool[Tensor, "B T"]],
    ) -> None:
        """Add one batch."""
        kept = double(scores[layout.valid])
        if not self.tokens:
            self._sum = self._sum_squares = torch.zeros(kept.shape[1:], dtype=torch.float64)
        self.tokens += kept.shape[0]
        self._sum = self._sum + kept.sum(dim=0)
        self._sum_squares = self._sum_squares + kept.square().sum(dim=0)
        for name, counted in (
            ("below_0.1", kept < 0.1),
            ("below_0.01", kept < 0.01),
            ("above_0.9", kept > 0.9),
        ):
            per_head = counted.sum(dim=(0, 2)).double()
            self._below[name] = per_head + self._below.get(name, 0.0)
        self.histogram.add(kept)
        self._add_subset("first token", scores, layout.begins)
        for name, mark in marks.items():
            self._add_subset(f"mark {name}", scores, mark & layout.valid)

    def _add_subset(self, name: str, scores: Tensor, where: Bool[Tensor, "B T"]) -> None:
        total, count = self._subsets.get(name, (0.0, 0))
        chosen = double(scores[where])
        self._subsets[name] = (total + float(chosen.sum()), count + chosen.numel())

    def _subset_mean(self, name: str) -> float:
        total, count = self._subsets.get(name, (0.0, 0))
        return total / count if count else float("nan")

    @property
    def channel_mean(self) -> Float[Tensor, "L W"]:
        """Mean score over tokens, per head and channel."""
        return self._sum / max(self.tokens, 1)

    @property
    def token_std_by_head(self) -> Float[Tensor, " L"]:
        """Standard deviation of scores over tokens, averaged over a head's channels."""
        variance = self._sum_squares / max(self.tokens, 1) - self.channel_mean.square()
        return variance.clamp(min=0).sqrt().mean(dim=-1)

    @property
    def token_std(self) -> float:
        """Mean over heads of `token_std_by_head`; 0 for a static gate."""
        return float(self.token_std_by_head.mean())

    def share_by_head(self, name: str) -> Float[Tensor, " L"]:
        """Share of a head's scores "below_0.1", "below_0.01" or "above_0.9"."""
        mean = self.channel_mean
        return self._below.get(name, torch.zeros(len(mean))) / max(self.tokens * mean.shape[-1], 1)

    @property
    def num_heads(self) -> int:
        """Number of scored heads L."""
        return len(self._sum)

    @property
    def mean(self) -> float:
        """Mean score over tokens, heads and channels."""
        return float(self.channel_mean.mean())

    @property
    def median(self) -> float:
        """Median score over tokens, heads and channels."""
        return self.histogram.quantile(0.5)

    @property
    def first_token_mean(self) -> float:
        """Mean score at the first tokens of documents."""
        return self._subset_mean("first token")

    def mark_mean(self, mark: str) -> float:
        """Mean score at marked positions; NaN without any."""
        return self._subset_mean(f"mark {mark}")

    def share(self, name: str) -> float:
        """Share of all scores "below_0.1", "below_0.01" or "above_0.9"."""
        return float(self._below[name].sum()) / self._num_scores

    def heads_at(self, name: str) -> list[int]:
        """Heads of which nearly all scores are "below_0.1" or "above_0.9"; see `ALWAYS`."""
        return (self.share_by_head(name) >= ALWAYS).nonzero().flatten().tolist()

    @property
    def _num_scores(self) -> int:
        return max(self.tokens * self._sum.numel(), 1)

    def summary(self) -> dict[str, Any]:
        """The gate's entry in analysis.json, without its layer and site."""
        mean = self.channel_mean
        second_moment = float(self._sum_squares.sum()) / self._num_scores
        marks = [name.removeprefix("mark ") for name in self._subsets if name.startswith("mark ")]
        edges, counts = self.histogram.binned(HISTOGRAM_BINS)
        return {
            "mean": self.mean,
            "median": self.median,
            "std": max(second_moment - self.mean**2, 0.0) ** 0.5,
            **{name: self.share(name) for name in self._below},
            "first_token_mean": self.first_token_mean,
            "token_std": self.token_std,
            "dead_channels": float((mean < 0.1).double().mean()),
            "mean_by_head": mean.mean(dim=-1).tolist(),
            "token_std_by_head": self.token_std_by_head.tolist(),
            "dead_heads": self.heads_at("below_0.1"),
            "open_heads": self.heads_at("above_0.9"),
            "by_mark": {mark: self.mark_mean(mark) for mark in marks},
            "histogram": {"edges": edges, "counts": counts},
        }
