"""Massive activations to be removed: the channels that hold them, and the size of the rest.

Massive after arXiv 2402.17762: |h| above 100, and above 1000 times the median |h| of its sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from gatelm.analysis.probe.layout import Layout
from gatelm.analysis.probe.protocol import Change
from gatelm.analysis.statistics.massive import MASSIVE_ABS, MASSIVE_RATIO
from gatelm.analysis.statistics.precise import double
from gatelm.nn.shapes import Bool, Float, Tensor


@dataclass(frozen=True, eq=False)
class LayerOutliers:
    """Outliers of one layer's residual stream.

    The channels that held massive activations, the largest |h| of all the others, and per such
    channel the mean of its positive and negative massive ones.
    """

    channels: tuple[int, ...]
    largest_other: float
    positive_mean: Float[Tensor, " C"]
    negative_mean: Float[Tensor, " C"]


class Outliers:
    """One layer's residual stream over many batches, padding left out."""

    def __init__(self) -> None:
        self._largest = torch.zeros(0)
        self._sums = torch.zeros(0, 2, dtype=torch.float64)
        self._counts = torch.zeros(0, 2, dtype=torch.float64)

    def add(self, resid: Float[Tensor, "B T D"], layout: Layout) -> None:
        """Add one batch."""
        if not len(self._largest):
            width = resid.shape[-1]
            self._largest = torch.zeros(width)
            self._sums, self._counts = (torch.zeros(width, 2, dtype=torch.float64) for _ in "sc")
        for row, valid in zip(resid.float(), layout.valid, strict=True):
            if not bool(valid.any()):
                continue
            self._largest = torch.maximum(self._largest, row[valid].abs().amax(dim=0).cpu())
            massive = is_massive(row, valid)
            if bool(massive.any()):
                for side, where in enumerate((massive & (row > 0), massive & (row < 0))):
                    self._sums[:, side] += double(row.masked_fill(~where, 0).sum(dim=0))
                    self._counts[:, side] += double(where.sum(dim=0))

    @property
    def channels(self) -> tuple[int, ...]:
        """The channels that hold a massive activation at any token."""
        return tuple(self._counts.sum(dim=1).nonzero().flatten().tolist())

    def summary(self) -> LayerOutliers:
        """Summarise the layer as the interventions need it."""
        index = torch.tensor(self.channels, dtype=torch.long)
        others = self._largest.clone()
        others[index] = 0.0
        means = self._sums[index] / self._counts[index].clamp(min=1)
        return LayerOutliers(
            self.channels, float(others.max()), means[:, 0].float(), means[:, 1].float()
        )


def is_massive(row: Float[Tensor, "T D"], valid: Bool[Tensor, " T"]) -> Bool[Tensor, "T D"]:
    """Mark the massive activations of one sequence; padding has none."""
    size = row.float().abs()
    median = size[valid].median() if bool(valid.any()) else size.new_zeros(())
    return (size > torch.clamp(MASSIVE_RATIO * median, min=MASSIVE_ABS)) & valid[:, None]


def clamped(outliers: Mapping[int, LayerOutliers]) -> Change:
    """Clamp channels with massive activations to the largest |h| of the other channels."""

    def change(layer: int, h: Tensor) -> Tensor:
        if layer not in outliers:
            return h
        found = outliers[layer]
        index = torch.tensor(found.channels, device=h.device)
        kept = h[..., index].clamp(-found.largest_other, found.largest_other)
        return h.index_copy(-1, index, kept)

    return change


def set_to_mean(outliers: Mapping[int, LayerOutliers], layout: Layout) -> Change:
    """Replace each massive activation by the mean of those in its channel that have its sign."""

    def change(layer: int, h: Tensor) -> Tensor:
        if layer not in outliers:
            return h
        found = outliers[layer]
        index = torch.tensor(found.channels, device=h.device)
        rows = [is_massive(row, valid) for row, valid in zip(h, layout.valid, strict=True)]
        massive = torch.stack(rows)[..., index]
        positive, negative = (m.to(h) for m in (found.positive_mean, found.negative_mean))
        old = h[..., index]
        mean = torch.where(old > 0, positive, negative)
        return h.index_copy(-1, index, torch.where(massive, mean, old))

    return change


def layer_names(layers: Collection[int]) -> str:
    """'layer 3', or 'layers 3, 5 to 8': runs of three or more are shortened."""
    numbers = sorted(layers)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ("layer " if len(numbers) == 1 else "layers ") + ", ".join(parts)
