"""Everything one look accumulates, and the readers that fill it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn

from gatelm.analysis.activations import NormRatio, ResidualTotals
from gatelm.analysis.attention import AttentionTotals
from gatelm.analysis.gates import GateTotals
from gatelm.analysis.layout import Batch, Layout, Placed
from gatelm.analysis.loss import LossTotals
from gatelm.analysis.record import Reader
from gatelm.analysis.streaming import attention_rows
from gatelm.analysis.taps import attention_layers, blocks, gate_sites
from gatelm.nn.masks import AttentionMask
from gatelm.nn.shapes import Tensor

HEADLINE_THRESHOLD = 0.3
"""The threshold of arXiv 2410.10781: that of the metric `sink_rate`."""


class Totals:
    """Accumulated statistics by layer; those of attention for softmax layers only."""

    def __init__(self, model: nn.Module, sink_thresholds: Sequence[float]):
        self._device = next(model.parameters()).device
        self.sink_thresholds = tuple(sink_thresholds)
        thresholds = tuple(dict.fromkeys((*sink_thresholds, HEADLINE_THRESHOLD)))
        self.layers = attention_layers(model)
        self.attention = {
            layer: AttentionTotals(attn.cfg.num_heads, thresholds)
            for layer, attn in self.layers.items()
        }
        self.values = {layer: NormRatio() for layer in self.layers}
        self.keys = {layer: NormRatio() for layer in self.layers}
        self.residual = [ResidualTotals() for _ in range(len(blocks(model)) + 1)]
        self.gates = {place: GateTotals() for place in gate_sites(model)}
        self.loss = LossTotals()
        self.marks: list[str] = []
        self.num_sequences = self.seq_len = 0
        self.first_tokens: Counter[int] = Counter()

    def begin(self, batch: Batch) -> Placed:
        """Count one batch and get ready for its forward; returns it on the model's device."""
        placed = self._batch = Placed.on(self._device, batch)
        rows, num_tokens = placed.tokens.shape
        self._mask = AttentionMask(num_tokens, num_tokens, placed.documents, self._device)
        self.layout = Layout.of(placed.documents, rows, num_tokens, self._device)
        self._queries: dict[int, Tensor] = {}
        self.marks += [name for name in placed.marks if name not in self.marks]
        self.num_sequences += rows
        self.seq_len = max(self.seq_len, num_tokens)
        self.first_tokens.update(placed.tokens[self.layout.begins].tolist())
        return placed

    def readers(self) -> dict[str, Reader]:
        """By tap, for `record`."""
        readers: dict[str, Reader] = {
            "resid_in": self._read_embedding,
            "resid_out": lambda layer, h: self.residual[layer + 1].add(h, self.layout),
        }
        if self.layers:
            readers |= {
                "v_gated": lambda layer, v: self.values[layer].add(v, self.layout),
                "q_rot_gated": self._queries_at,
                "k_rot_gated": self._read_keys,
            }
        for site in dict.fromkeys(site for _, site in self.gates):
            readers[f"{site}_gate"] = self._gate_reader(site)
        return readers

    def _queries_at(self, layer: int, q: Tensor) -> None:
        self._queries[layer] = q

    def _read_embedding(self, layer: int, h: Tensor) -> None:
        if layer == 0:
            self.residual[0].add(h, self.layout)

    def _read_keys(self, layer: int, k: Tensor) -> None:
        self.keys[layer].add(k, self.layout)
        attn = self.layers[layer]
        rows = attention_rows(
            self._queries.pop(layer),
            k,
            self._mask,
            scale=attn.scale,
            window_tokens=attn.cfg.window_tokens,
        )
        self.attention[layer].add(rows, self._batch.marks)

    def _gate_reader(self, site: str) -> Reader:
        def read(layer: int, scores: Tensor) -> None:
            self.gates[layer, site].add(scores, self.layout, self._batch.marks)

        return read

    def check(self) -> None:
        """Raises ValueError when there were no batches, RuntimeError when no hook was called."""
        if not self.num_sequences:
            raise ValueError("no batches to look at: the held-out data is empty")
        if not self.residual[-1].num_sequences:
            raise RuntimeError(
                "the model ran, but nothing passed its taps: analyse the module itself, not a "
                "compiled or traced copy"
            )
