"""Massive activations: how large, in which channels, at which tokens (arXiv 2402.17762)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gatelm.analysis.probe.layout import Layout
from gatelm.analysis.statistics.precise import double
from gatelm.nn.shapes import Float, Int, Tensor

MASSIVE_ABS, MASSIVE_RATIO = 100.0, 1000.0
"""Massive: |h| above the one, and above the other times the sequence's median |h|."""

NUM_TOP = 5


@dataclass(frozen=True)
class Entry:
    """One large entry: its signed value, where it stands, and the token there."""

    value: float
    position: int
    channel: int
    token: int


class MassiveTotals:
    """The residual stream at one place, sequence by sequence (rows of the batch, no padding)."""

    def __init__(self) -> None:
        self.num_sequences = 0
        self.top: list[Entry] = []
        self.tokens: Counter[int] = Counter()
        self.num_massive = self.num_massive_first = 0
        self._top_sums = torch.zeros(3, dtype=torch.float64)
        self._channels = torch.zeros(0, dtype=torch.float64)

    def add(
        self, resid: Float[Tensor, "B T D"], layout: Layout, tokens: Int[Tensor, "B T"]
    ) -> None:
        """Add one batch."""
        for b, row in enumerate(resid.float()):
            valid = layout.valid[b]
            if bool(valid.any()):
                self._add_sequence(row[valid], layout.position[b][valid], tokens[b][valid])

    def _add_sequence(
        self, row: Float[Tensor, "T D"], position: Int[Tensor, " T"], tokens: Int[Tensor, " T"]
    ) -> None:
        size = row.abs()
        if not self.num_sequences:
            self._channels = torch.zeros(row.shape[1], dtype=torch.float64)
        self.num_sequences += 1
        self._channels += double(size.amax(dim=0))
        largest, index = size.flatten().topk(min(NUM_TOP, size.numel()))
        self._top_sums += double(torch.nn.functional.pad(largest, (0, 3))[:3])
        where = [divmod(i, row.shape[1]) for i in index.tolist()]
        found = [Entry(float(row[t, c]), int(position[t]), c, int(tokens[t])) for t, c in where]
        self.top = sorted(self.top + found, key=lambda e: -abs(e.value))[:NUM_TOP]
        massive = size > max(MASSIVE_ABS, MASSIVE_RATIO * float(size.median()))
        at = massive.sum(dim=1)
        self.num_massive += int(at.sum())
        self.num_massive_first += int(at[position == 0].sum())
        self.tokens.update(tokens[at > 0].tolist())

    @property
    def count_per_sequence(self) -> float:
        """Mean number of massive entries in a sequence; NaN without any sequence."""
        return self.num_massive / self.num_sequences if self.num_sequences else float("nan")

    def channels(self, most: int = NUM_TOP) -> list[tuple[int, float]]:
        """The channels whose largest |h| in a sequence is largest, in the mean over sequences."""
        if not self.num_sequences:
            return []
        means = self._channels / self.num_sequences
        values, index = means.topk(min(most, len(means)))
        return list(zip(index.tolist(), values.tolist(), strict=True))

    def summary(self, display: Callable[[int], str] | None) -> dict[str, Any]:
        """The entry of this place in analysis.json."""

        def shown(token: int) -> str:
            return str(token) if display is None else display(token)

        count = max(self.num_sequences, 1)
        return {
            "top_3_mean": (self._top_sums / count).tolist(),
            "massive_per_sequence": self.count_per_sequence,
            "massive_on_first_token": self.num_massive_first / count,
            "top_channels": [{"channel": c, "mean_max_abs": v} for c, v in self.channels()],
            "top": [
                {
                    "value": entry.value,
                    "position": entry.position,
                    "channel": entry.channel,
                    "id": entry.token,
                    "token": shown(entry.token),
                }
                for entry in self.top
            ],
            "massive_tokens": [
                {"id": token, "token": shown(token), "sequences": n}
                for token, n in self.tokens.most_common(8)
            ],
        }
