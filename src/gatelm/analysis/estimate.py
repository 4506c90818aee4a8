"""How long an analysis will take and how much memory it needs, before it starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gatelm.analysis.probe.layout import Layout
from gatelm.analysis.probe.protocol import AttentionCall, Observer, Probe
from gatelm.analysis.statistics.profile import Carried, Profile
from gatelm.analysis.statistics.streaming import attention_rows, weight_blocks
from gatelm.analysis.statistics.totals import Totals
from gatelm.analysis.windows import TOKENS_PER_BATCH, WindowBatch, Windows
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.shapes import Float, Tensor

TRIAL_TOKENS = 64
BLOCK_BYTES = 48 << 20
"""Bytes that one block of attention weights and its temporaries may take."""


@dataclass(frozen=True)
class Estimate:
    """Cost of analysing one model; `matrices_bytes`: size of all attention matrices of one row."""

    seconds: float
    weights_bytes: int
    working_bytes: int
    matrices_bytes: int

    @property
    def total_bytes(self) -> int:
        """Bytes of the weights and of the memory that the analysis takes beside them."""
        return self.weights_bytes + self.working_bytes


class _Shapes(Observer):
    """(heads, head width) by layer, and the width of the residual stream."""

    def __init__(self) -> None:
        self.by_layer: dict[int, tuple[int, int]] = {}
        self.width = 0

    def attention(self, call: AttentionCall) -> None:
        self.by_layer[call.layer] = (call.q.shape[2], call.q.shape[3])

    def weights(self, layer: int, weights: Float[Tensor, "B N T T"], mask: AttentionMask) -> None:
        self.by_layer[layer] = (weights.shape[1], 0)

    def residual(self, layer: int, h: Float[Tensor, "B T D"]) -> None:
        self.width = h.shape[-1]


def estimate(probe: Probe, windows: Windows) -> Estimate:
    """Estimate time and memory from a trial on a few tokens and the cost of one block of weights.

    What grows with the number of tokens is scaled from the trial, what grows with its square from
    the block; the first is an upper bound, since a short row uses a machine less well.
    """
    rows, seq_len = windows.tokens.shape
    trial = WindowBatch(windows.tokens[:1, :TRIAL_TOKENS], windows.targets[:1, :TRIAL_TOKENS])
    shapes = _Shapes()
    probe.observe(trial.tokens.to(probe.device), None, shapes)
    totals = Totals(probe, (), detail="full")
    linear = _second_time(lambda: totals.add(trial)) / trial.tokens.shape[1]
    all_heads = sum(heads for heads, _ in shapes.by_layer.values())
    quadratic = all_heads * _seconds_per_weight(probe, shapes)
    per_batch = min(rows, max(1, TOKENS_PER_BATCH // seq_len)) * seq_len
    working = BLOCK_BYTES + per_batch * shapes.width * 4 * 24 + _rank_bytes(totals)
    return Estimate(
        seconds=rows * (linear * seq_len + quadratic * seq_len**2),
        weights_bytes=probe.parameters * probe.dtype.itemsize,
        working_bytes=working,
        matrices_bytes=all_heads * seq_len**2 * 4,
    )


def _second_time(work: Callable[[], object]) -> float:
    """Seconds of `work` once it is warm."""
    work()
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _rank_bytes(totals: Totals) -> int:
    assert totals.details is not None
    ranks = (rank for of_layer in totals.details.ranks.values() for rank in of_layer.values())
    return sum(8 * rank.width**2 for rank in ranks)


def _seconds_per_weight(probe: Probe, shapes: _Shapes) -> float:
    """Measure the seconds that one attention weight of one head takes, in both passes."""
    widest = max(shapes.by_layer.values(), default=(1, 0))
    heads, width = widest[0], widest[1] or 64
    size = 256
    q = torch.ones(1, size, heads, width, device=probe.device, dtype=probe.dtype)
    call = AttentionCall(0, q, q, q, AttentionMask(size, size, device=probe.device), 1.0)
    layout = Layout.of(None, 1, size, probe.device)

    def work() -> None:
        rows = attention_rows(q, q, call.mask, scale=1.0)
        blocks = weight_blocks(call, rows.lse, layout)
        Profile(heads).add(blocks, layout, Carried(q, heads, q))

    return _second_time(work) / (heads * size**2)
