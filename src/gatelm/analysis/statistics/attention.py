"""One layer's attention statistics over many batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from gatelm.analysis.statistics.precise import double
from gatelm.analysis.statistics.streaming import AttentionRows
from gatelm.nn.shapes import Bool, Float, Tensor

MIN_DOCUMENT_TOKENS = 16
"""Shorter documents have no sink rate: the mean over few queries is large by itself (uniform
attention gives the first of 8 keys 0.34, of 16 keys 0.21). Keys with fewer queries neither."""

NUM_POSITIONS = 10
"""Key positions with a sink rate of their own."""


class AttentionTotals:
    """Sums of `AttentionRows`, per head; means come out of the properties.

    Counted are valid queries from the second of their document on; for the first-token share, only
    those whose window reaches the first token (`coverage` is their part). Every mean is over all
    counted queries of all batches, so a longer document counts more. Sink rates are over
    documents: the indicator first, then the mean (arXiv 2410.10781).
    """

    def __init__(self, num_heads: int, sink_thresholds: Sequence[float]):
        self.num_heads = num_heads
        self.sink_thresholds = tuple(sink_thresholds)
        self.max_logit = torch.full((num_heads,), float("-inf"), dtype=torch.float64)
        self._totals: dict[str, tuple[Tensor, Tensor]] = {}

    def add(self, rows: AttentionRows, marks: Mapping[str, Bool[Tensor, "B T"]]) -> None:
        """Add one batch; `marks` name sets of its queries."""
        counted = rows.valid & (rows.visible >= 2)
        reaching = counted & rows.sees_first
        self._add("coverage", reaching[:, None].expand_as(rows.entropy), counted)
        self._add_share("", rows, reaching)
        for name, mark in marks.items():
            self._add_share(f"/{name}", rows, reaching & mark)
        self._add("entropy", rows.entropy, counted)
        ceiling = rows.visible.clamp(min=2).log()[:, None]
        self._add("normalized_entropy", rows.entropy / ceiling, counted)
        self._add("entropy_without_first", rows.entropy_without_first, counted)
        self._add("max_weight", rows.max_weight, counted)
        logits = rows.max_logit.masked_fill(~rows.valid[:, None], float("-inf"))
        self.max_logit = torch.maximum(self.max_logit, double(logits.amax(dim=(0, 2))))
        self._add_sinks(rows)

    def _add_share(self, suffix: str, rows: AttentionRows, where: Bool[Tensor, "B T"]) -> None:
        self._add(f"share{suffix}", rows.first_weight, where)
        uniform = 1.0 / rows.visible.clamp(min=1)[:, None].expand_as(rows.first_weight)
        self._add(f"uniform{suffix}", uniform, where)

    def _add(self, name: str, values: Tensor, where: Bool[Tensor, "B T"]) -> None:
        """Sum `values` (B,N,T) over the queries in `where`."""
        chosen = values.masked_fill(~where[:, None], 0)
        self._put(name, chosen.sum(dim=(0, 2), dtype=torch.float32), where.sum())

    def _put(self, name: str, total: Tensor, count: Tensor) -> None:
        total, count = double(total), double(count)
        if name in self._totals:
            total, count = total + self._totals[name][0], count + self._totals[name][1]
        self._totals[name] = (total, count)

    def _add_sinks(self, rows: AttentionRows) -> None:
        """Count the documents in which the importance of a first key, or of any key, is large."""
        layout = rows.layout
        enough = rows.importance_queries >= MIN_DOCUMENT_TOKENS
        long = layout.valid & (layout.document_tokens() >= MIN_DOCUMENT_TOKENS)
        counted = long & (enough | layout.begins)
        importance = rows.importance.masked_fill(~counted[:, None], 0.0)
        first = layout.first[:, None].expand_as(importance)
        peaks = torch.zeros_like(importance).scatter_reduce(-1, first, importance, "amax")
        row, begin = (long & layout.begins).nonzero(as_tuple=True)
        index = begin[:, None] + torch.arange(NUM_POSITIONS, device=begin.device)
        at_position = importance[row[:, None], :, index]
        has_position = counted[row[:, None], index].sum(dim=0)[:, None]
        self._put("importance", at_position.sum(dim=0), has_position)
        at_peak, documents = peaks[row, :, begin], torch.tensor(len(row))
        for threshold in self.sink_thresholds:
            self._put(f"sink/{threshold:g}", (at_position > threshold).sum(dim=0), has_position)
            self._put(f"sink_any/{threshold:g}", (at_peak > threshold).sum(dim=0), documents)

    def mean(self, name: str) -> Tensor:
        """Mean per head (N,), for some by key position (P,N); NaN where nothing was counted."""
        if name not in self._totals:
            return torch.full((self.num_heads,), float("nan"), dtype=torch.float64)
        total, count = self._totals[name]
        return total / count

    def share(self, mark: str = "") -> Float[Tensor, "N"]:
        """Mean weight of the first token, per head, over all counted queries or the marked ones."""
        return self.mean(f"share/{mark}" if mark else "share")

    def uniform_share(self, mark: str = "") -> float:
        """The value of `share` if every query spread its weight evenly over the keys it sees.

        (H_T - 1)/(T - 1) for one document of T tokens, H_T the harmonic number.
        """
        return float(self.mean(f"uniform/{mark}" if mark else "uniform")[0])

    def sink_rate(self, threshold: float) -> Float[Tensor, "P N"]:
        """Share of documents whose key at each of the first P positions exceeds the threshold."""
        return self.mean(f"sink/{threshold:g}")

    def sink_rate_any(self, threshold: float) -> Float[Tensor, "N"]:
        """Share of documents in which some key has importance > threshold."""
        return self.mean(f"sink_any/{threshold:g}")
