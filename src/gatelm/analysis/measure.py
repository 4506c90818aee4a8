"""Analyze a model on held-out batches: loss, attention, activations, gates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from gatelm.analysis.metrics.summary import analysis_tree, flat_metrics
from gatelm.analysis.probe.gatelm_probe import as_probe
from gatelm.analysis.probe.layout import Placed, TokenBatch
from gatelm.analysis.probe.protocol import AttentionCall, Observer, Probe
from gatelm.analysis.statistics.maps import Decode, attention_map, maps_entry
from gatelm.analysis.statistics.totals import Detail, Totals
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.shapes import Float, Tensor

SINK_THRESHOLDS = (0.2, 0.3, 0.5, 0.8)


@dataclass
class Analysis:
    """Result of an analysis: sums over all batches, and the attention maps of a sample."""

    totals: Totals
    maps: dict[str, Any] | None = None

    def metrics(self) -> dict[str, float]:
        """Flat metrics by their names in `registry.METRICS`, with `_{mark}` for marked positions.

        What does not apply (gates of a model without) or is not a number is left out.
        """
        return flat_metrics(self.totals)

    def to_json(self) -> dict[str, Any]:
        """Return the content of analysis.json; numbers that are not finite are null."""
        return analysis_tree(self.totals, self.maps)


def analyze_batches(
    model: nn.Module | Probe,
    batches: Iterable[TokenBatch],
    *,
    sink_thresholds: Sequence[float] = SINK_THRESHOLDS,
    bytes_per_token: float | None = None,
    decode: Decode | None = None,
    map_tokens: int = 48,
    max_maps: int = 24,
    detail: Detail = "standard",
    layers: Collection[int] | None = None,
) -> Analysis:
    """Measure a decoder, or any probe, on `batches`; nothing about the model changes.

    The model is put in evaluation mode and back, gets no gradients and draws no random number.
    Memory beside the forward's: one layer's queries, keys and values, and a block of weights.

    bytes_per_token: of the text behind the batches, for bits per byte.
    decode: display strings of token ids, for the maps' axes; without it the ids are shown.
    map_tokens: attention maps show the first document of the first row, up to this many
        tokens; 0 for no maps. max_maps: all heads of as many layers, spread over the depth, as fit.
    detail: "full" adds what `analysis.statistics.details` adds up, at about twice the time.
    layers: whose attention and gates are measured; None: all.

    Raises:
        ValueError: no batches, or a model without layers to read.
    """
    totals = Totals(
        model,
        sink_thresholds,
        detail=detail,
        layers=layers,
        bytes_per_token=bytes_per_token,
        display=None if decode is None else lambda token: decode([token])[0],
    )
    sample: Placed | None = None
    for batch in batches:
        placed = totals.add(batch)
        if sample is None:
            sample = placed.first_document(totals.layout, map_tokens)
    totals.check()
    assert sample is not None
    maps = None
    if map_tokens and totals.attention:
        maps = _maps(totals, sample, decode, max_maps)
    return Analysis(totals, maps)


def health(model: nn.Module | Probe, batches: Iterable[TokenBatch]) -> dict[str, float]:
    """The cheap part of an analysis: the numbers of attention, activations and gates that have
    `in_health`; no loss, no maps."""
    totals = Totals(as_probe(model), ())
    for batch in batches:
        totals.measure(batch)
    totals.check()
    return flat_metrics(totals, only_health=True)


class _Maps(Observer):
    """Keeps the attention maps of one short document."""

    def __init__(self, layers: Collection[int]) -> None:
        self.layers = layers
        self.maps: dict[int, Tensor] = {}

    def attention(self, call: AttentionCall) -> None:
        if call.layer in self.layers:
            self.maps[call.layer] = attention_map(
                call.q[0],
                call.k[0],
                scale=call.scale,
                window_tokens=call.window_tokens,
                softcap=call.softcap,
                sink_logits=call.sink_logits,
                alibi_slopes=call.alibi_slopes,
                pattern=call.pattern,
            )

    def weights(self, layer: int, weights: Float[Tensor, "B N T T"], mask: AttentionMask) -> None:
        if layer in self.layers:
            self.maps[layer] = weights[0].float()


def _maps(totals: Totals, sample: Placed, decode: Decode | None, max_maps: int) -> dict[str, Any]:
    """Attention maps of one short document, from a forward of its own."""
    kept = _Maps(totals.attention)
    sample.observe(totals.probe, kept)
    ids = sample.tokens[0].tolist()
    return maps_entry([str(i) for i in ids] if decode is None else decode(ids), kept.maps, max_maps)
