"""Totals: all statistics that one analysis adds up over its batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal

from torch import nn

from gatelm.analysis.loss import LossTotals
from gatelm.analysis.probe.gatelm_probe import as_probe
from gatelm.analysis.probe.layout import Layout, Placed, TokenBatch
from gatelm.analysis.probe.protocol import AttentionCall, Observer, Probe
from gatelm.analysis.statistics.activations import NormRatio, ResidualTotals
from gatelm.analysis.statistics.attention import AttentionTotals
from gatelm.analysis.statistics.details import Details, Display
from gatelm.analysis.statistics.gates import GateTotals
from gatelm.analysis.statistics.streaming import attention_rows, rows_of_weights
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.shapes import Float, Tensor

HEADLINE_THRESHOLD = 0.3
"""The threshold of arXiv 2410.10781: that of the metric `sink_rate`."""

Detail = Literal["standard", "full"]
"""full: also `Details`, at about twice the cost."""


class Totals:
    """Accumulated statistics by layer; those of attention for softmax layers only."""

    def __init__(
        self,
        model: nn.Module | Probe,
        sink_thresholds: Sequence[float],
        *,
        detail: Detail = "standard",
        layers: Collection[int] | None = None,
        bytes_per_token: float | None = None,
        display: Display | None = None,
    ):
        """layers: whose attention, gates and outputs are measured; None: all.

        bytes_per_token: of the text behind the batches. display: the string of a token id.
        """
        self.probe = as_probe(model)
        self.sink_thresholds = tuple(sink_thresholds)
        self.thresholds = tuple(dict.fromkeys((*sink_thresholds, HEADLINE_THRESHOLD)))
        self.layers = range(self.probe.num_layers) if layers is None else frozenset(layers)
        self.attention: dict[int, AttentionTotals] = {}
        self.values: dict[int, NormRatio] = {}
        self.keys: dict[int, NormRatio] = {}
        self.residual = [ResidualTotals() for _ in range(self.probe.num_layers + 1)]
        self.gates: dict[tuple[int, str], GateTotals] = {}
        self.details = (
            Details(HEADLINE_THRESHOLD, self.probe.num_layers, display)
            if detail == "full"
            else None
        )
        self.bytes_per_token = bytes_per_token
        self.loss = LossTotals()
        self.marks: list[str] = []
        self.num_sequences = self.seq_len = 0
        self.first_tokens: Counter[int] = Counter()

    def begin(self, batch: TokenBatch) -> Placed:
        """Count one batch and get ready for its forward; returns it on the model's device."""
        device = self.probe.device
        placed = self.batch = Placed.on(device, batch)
        rows, num_tokens = placed.tokens.shape
        self.layout = Layout.of(placed.documents, rows, num_tokens, device)
        self._mask = AttentionMask(num_tokens, num_tokens, placed.documents, device)
        self.marks += [name for name in placed.marks if name not in self.marks]
        self.num_sequences += rows
        self.seq_len = max(self.seq_len, num_tokens)
        self.first_tokens.update(placed.tokens[self.layout.begins].tolist())
        if self.details is not None:
            self.details.begin(placed.tokens, self.layout)
        return placed

    def measure(self, batch: TokenBatch) -> tuple[Float[Tensor, "B T D"], Placed]:
        """Run the model on one batch and add what passes, without the loss."""
        placed = self.begin(batch)
        return placed.observe(self.probe, _Filler(self)), placed

    def add(self, batch: TokenBatch) -> Placed:
        """Run the model on one batch and add what passes, and the loss."""
        hidden, placed = self.measure(batch)
        self.loss.add(self.probe, hidden, placed)
        return placed

    def check(self) -> None:
        """Raises ValueError when there were no batches, RuntimeError when nothing was seen."""
        if not self.num_sequences:
            raise ValueError("no batches to look at: the held-out data is empty")
        silent = {layer for layer in self.probe.attention_layers if layer in self.layers}
        silent -= self.attention.keys()
        if silent or not self.residual[-1].num_sequences:
            raise RuntimeError(
                "the model ran, but nothing was seen of "
                f"{f'layers {sorted(silent)}' if silent else 'it'}: analyse the module itself, "
                "not a compiled or traced copy"
            )


class _Filler(Observer):
    """Observer that adds the tensors it receives to the totals."""

    def __init__(self, totals: Totals):
        self._totals = totals

    def attention(self, call: AttentionCall) -> None:
        """Add one layer's attention, keys and values."""
        totals = self._totals
        layer = call.layer
        if layer not in totals.layers:
            return
        if layer not in totals.attention:
            totals.attention[layer] = AttentionTotals(call.q.shape[2], totals.thresholds)
            totals.values[layer], totals.keys[layer] = NormRatio(), NormRatio()
        totals.values[layer].add(call.v, totals.layout)
        totals.keys[layer].add(call.k, totals.layout)
        rows = attention_rows(
            call.q,
            call.k,
            call.mask,
            scale=call.scale,
            window_tokens=call.window_tokens,
            softcap=call.softcap,
            sink_logits=call.sink_logits,
            alibi_slopes=call.alibi_slopes,
            pattern=call.pattern,
        )
        totals.attention[layer].add(rows, totals.batch.marks)
        if totals.details is not None:
            totals.details.attention_rows(call, rows)

    def weights(self, layer: int, weights: Float[Tensor, "B N T T"], mask: AttentionMask) -> None:
        """Add a layer of which only the weights can be read."""
        totals = self._totals
        if layer not in totals.layers:
            return
        if layer not in totals.attention:
            totals.attention[layer] = AttentionTotals(weights.shape[1], totals.thresholds)
        rows = rows_of_weights(weights, mask)
        totals.attention[layer].add(rows, totals.batch.marks)
        if totals.details is not None:
            totals.details.weights(layer, weights, rows)

    def residual(self, layer: int, h: Float[Tensor, "B T D"]) -> None:
        """Add the residual stream after one layer, or the embeddings."""
        totals = self._totals
        totals.residual[layer + 1].add(h, totals.layout)
        if totals.details is not None:
            totals.details.residual(layer, h)

    def gate(self, layer: int, site: str, scores: Float[Tensor, "B T L W"]) -> None:
        """Add one gate's scores."""
        totals = self._totals
        if layer not in totals.layers:
            return
        gate = totals.gates.setdefault((layer, site), GateTotals())
        gate.add(scores, totals.layout, totals.batch.marks)
        if totals.details is not None:
            totals.details.gate(layer, site, scores)

    def heads(
        self, layer: int, before: Float[Tensor, "B T N H"], after: Float[Tensor, "B T N H"]
    ) -> None:
        """Pass the heads' outputs to `Details`, which alone reads them."""
        totals = self._totals
        if totals.details is not None and layer in totals.layers:
            totals.details.heads(layer, before, after)

    def branch(self, layer: int, y: Float[Tensor, "B T D"]) -> None:
        """Pass the branch's output to `Details`, which alone reads it."""
        totals = self._totals
        if totals.details is not None and layer in totals.layers:
            totals.details.branch(layer, y)
