"""Profiles of attention: by leading keys, by distance, and by the size of what it carries.

A second pass over the weights, for an analysis in full detail. The naive twins are in
`gatelm.testing.statistics`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from gatelm.analysis.probe.layout import Layout
from gatelm.analysis.statistics.precise import double
from gatelm.analysis.statistics.streaming import WeightBlock
from gatelm.nn.shapes import Float, Int, Tensor

LEADING_KEYS = (1, 2, 4, 8, 16)
"""Numbers m of leading keys whose common share of the weight is measured."""


def distance_edges(num_tokens: int) -> list[int]:
    """Distances 0, 1, 2-3, 4-7, ...: bin b holds edges[b] <= distance < edges[b + 1]."""
    edges = [0, 1]
    while edges[-1] < num_tokens:
        edges.append(2 * edges[-1])
    return edges


class Profile:
    """One layer's sums over queries and batches, per head.

    Counted queries: valid, and with another key than themselves (the second of a document on); for
    the share of the first m keys those with more than m keys whose window reaches the first.
    """

    def __init__(self, num_heads: int):
        self.num_heads = num_heads
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, float] = {}

    def add(
        self,
        blocks: Iterable[WeightBlock],
        layout: Layout,
        carried: Carried | None = None,
        window_tokens: int | None = None,
    ) -> None:
        """Add one batch; the queries are all positions of `layout`.

        carried: the values and gates, where they can be read.
        """
        window = layout.position.shape[1] if window_tokens is None else window_tokens
        visible = (layout.position + 1).clamp(max=window)
        for block in blocks:
            queries = slice(block.start, block.stop)
            valid = layout.valid[:, queries]
            weights = block.weights * valid[:, None, :, None]
            self._add_leading(weights, block, layout, window)
            counted = valid & (visible[:, queries] >= 2)
            self._add_distances(weights, block, layout, counted, visible[:, queries])
            if carried is not None:
                self._add_carried(weights, block, layout, carried, counted)

    def _add_leading(
        self, weights: Float[Tensor, "B N t s"], block: WeightBlock, layout: Layout, window: int
    ) -> None:
        queries = slice(block.start, block.stop)
        most = LEADING_KEYS[-1]
        keys = layout.first[:, queries, None] + torch.arange(most, device=weights.device)
        inside = (keys >= block.low) & (keys < block.high)
        index = (keys - block.low).clamp(0, weights.shape[-1] - 1)
        found = weights.gather(-1, index[:, None].expand(*weights.shape[:3], most))
        totals = (found * inside[:, None]).cumsum(dim=-1)
        position, valid = layout.position[:, queries], layout.valid[:, queries]
        for m in LEADING_KEYS:
            where = valid & (position >= m) & (position < window)
            self._put(
                f"leading/{m}",
                (totals[..., m - 1] * where[:, None]).sum(dim=(0, 2)),
                float(where.sum()),
            )
            uniform = (where * m / (position + 1)).sum()
            self._put(f"leading_uniform/{m}", uniform[None], float(where.sum()))

    def _add_distances(
        self,
        weights: Float[Tensor, "B N t s"],
        block: WeightBlock,
        layout: Layout,
        counted: Tensor,
        visible: Int[Tensor, "B t"],
    ) -> None:
        """Add the weights by distance, bin by bin: distances are the diagonals of the block."""
        chosen = torch.einsum("bnts,bt->nts", weights, counted.to(weights.dtype))
        by_distance = _along_diagonals(chosen, block)
        edges = distance_edges(layout.position.shape[1])
        count = float(counted.sum())
        self._put("distance", _binned(by_distance, edges), count)
        queries = slice(block.start, block.stop)
        position = layout.position[:, queries]
        first = layout.first[:, queries, None] - block.low
        at_first = weights.gather(
            -1, first.clamp(min=0)[:, None].expand(*weights.shape[:3], 1)
        ).squeeze(-1)
        at_first = at_first * (counted & (first.squeeze(-1) >= 0))[:, None]
        far = torch.zeros(self.num_heads, layout.position.shape[1], device=weights.device)
        index = position[:, None].expand_as(at_first).transpose(0, 1).flatten(1)
        far.scatter_add_(1, index, at_first.transpose(0, 1).flatten(1).to(far.dtype))
        self._put("distance_first", _binned(far, edges), count)
        self._put("distance_uniform", _uniform(visible, counted, edges)[None], count)

    def _add_carried(
        self,
        weights: Float[Tensor, "B N t s"],
        block: WeightBlock,
        layout: Layout,
        carried: Carried,
        counted: Tensor,
    ) -> None:
        """Add the norms of what each key adds to a query's head output, ungated and gated."""
        for name, size in carried.sizes(block):
            parts = weights * size
            first = layout.first[:, block.start : block.stop, None] - block.low
            index = first.clamp(min=0)[:, None].expand(*weights.shape[:3], 1)
            at_first = parts.gather(-1, index).squeeze(-1)
            at_first = at_first * (counted & (first.squeeze(-1) >= 0))[:, None]
            total = parts.sum(dim=-1) * counted[:, None]
            self._put(f"{name}/first", at_first.sum(dim=(0, 2)), 1.0)
            self._put(f"{name}/total", total.sum(dim=(0, 2)), 1.0)

    def _put(self, name: str, total: Tensor, count: float) -> None:
        total = double(total)
        old = self._sums.get(name)
        if old is not None and old.shape[-1] < total.shape[-1]:
            old = torch.nn.functional.pad(old, (0, total.shape[-1] - old.shape[-1]))
        elif old is not None:
            total = torch.nn.functional.pad(total, (0, old.shape[-1] - total.shape[-1]))
        self._sums[name] = total if old is None else old + total
        self._counts[name] = self._counts.get(name, 0.0) + count

    def mean(self, name: str) -> Tensor:
        """Mean of a sum over the counted queries; NaN without any."""
        if name not in self._sums:
            return torch.full((self.num_heads,), float("nan"), dtype=torch.float64)
        count = self._counts[name]
        return self._sums[name] / (count if count else float("nan"))

    def leading(self, m: int) -> Float[Tensor, " N"]:
        """Mean weight of the first m keys together."""
        return self.mean(f"leading/{m}")

    def carried_share(self, name: str) -> Float[Tensor, " N"]:
        """Share of the first token, by norm, of all vectors that heads' outputs are the sum of.

        Sums over queries first, then the ratio: a query whose gate is shut counts little.
        name: "value" (weight times |v|) or "gated" (weight times |gate * v|).
        """
        if f"{name}/total" not in self._sums:
            return torch.full((self.num_heads,), float("nan"), dtype=torch.float64)
        return self._sums[f"{name}/first"] / self._sums[f"{name}/total"]

    def carried_mean(self, name: str) -> float:
        """The share of `carried_share` for all heads of one layer together."""
        if f"{name}/total" not in self._sums:
            return float("nan")
        return float(self._sums[f"{name}/first"].sum() / self._sums[f"{name}/total"].sum())


@dataclass(frozen=True)
class Carried:
    """What attention carries: values (B,S,K,H), and the scores (B,T,L,W) of a gate that multiplies
    the heads' outputs, if there is one."""

    values: Float[Tensor, "B S K H"]
    num_heads: int
    gate: Float[Tensor, "B T L W"] | None = None

    def sizes(self, block: WeightBlock) -> list[tuple[str, Float[Tensor, "B N #t s"]]]:
        """Norms |v_j| and |gate_i * v_j| for the queries and keys of a block."""
        values = self.values[:, block.low : block.high].to(block.weights.dtype)
        values = values.repeat_interleave(self.num_heads // values.shape[2], dim=2)
        norms = values.norm(dim=-1).transpose(1, 2)[:, :, None]
        out = [("value", norms)]
        if self.gate is not None:
            gate = self.gate[:, block.start : block.stop].to(block.weights.dtype)
            gate = gate.expand(-1, -1, self.num_heads, -1).transpose(1, 2)
            if gate.shape[-1] == 1:
                out.append(("gated", gate.abs() * norms))
            else:
                squares = values.square().permute(0, 2, 3, 1)
                out.append(("gated", (gate.square() @ squares).clamp(min=0).sqrt()))
        return out


def _along_diagonals(chosen: Float[Tensor, "N t s"], block: WeightBlock) -> Float[Tensor, "N d"]:
    """Sums by distance 0, 1, ...: entry (r, c) is at distance start + r - low - c."""
    heads, rows, keys = chosen.shape
    width = rows + keys
    skewed = chosen.new_zeros(heads, rows * (width + 1))
    skewed[:, : rows * width].view(heads, rows, width)[..., rows:] = chosen
    # In rows one longer, an entry moves left by its row number: column = keys' c - r + rows.
    sums = skewed.view(heads, rows, width + 1).sum(dim=1)
    # Column c - r + rows; distance (start - low) + r - c = (start - low) + rows - column.
    farthest = block.start - block.low + rows
    return sums[:, 1 : farthest + 1].flip(1)


def _binned(by_distance: Float[Tensor, "N d"], edges: list[int]) -> Float[Tensor, "N E"]:
    """Sums over the distances of each bin."""
    cumulated = torch.nn.functional.pad(double(by_distance).cumsum(dim=1), (1, 0))
    index = torch.tensor(edges).clamp(max=by_distance.shape[1])
    return cumulated[:, index[1:]] - cumulated[:, index[:-1]]


def _uniform(visible: Int[Tensor, "B t"], counted: Tensor, edges: list[int]) -> Float[Tensor, " E"]:
    """The sum of each bin if every counted query spread its weight evenly over the keys it sees."""
    keys = visible[counted].cpu().double()
    bounds = torch.tensor(edges).double()
    inside = keys[:, None].minimum(bounds[1:]) - keys[:, None].minimum(bounds[:-1])
    return (inside / keys[:, None]).sum(dim=0)
