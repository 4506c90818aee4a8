"""One look at a model on held-out data: loss, attention, activations, gates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from gatelm.analysis.evaluation import evaluation
from gatelm.analysis.layout import Batch, Layout, Placed
from gatelm.analysis.maps import Decode, attention_map, maps_entry
from gatelm.analysis.metrics import HEALTH_METRICS, split_mark
from gatelm.analysis.record import keep, record
from gatelm.analysis.summary import analysis_tree, flat_metrics
from gatelm.analysis.taps import attention_layers, decoder
from gatelm.analysis.totals import Totals
from gatelm.nn.shapes import Int, Tensor

SINK_THRESHOLDS = (0.2, 0.3, 0.5, 0.8)


@dataclass
class Look:
    """What a look found: sums over all batches, and the attention maps of a sample."""

    totals: Totals
    maps: dict[str, Any] | None = None
    bytes_per_token: float | None = None

    def metrics(self) -> dict[str, float]:
        """Flat, by the names of `metrics.METRICS`, with `_{mark}` for marked positions.

        What does not apply (gates of a model without) or is not a number is left out.
        """
        return flat_metrics(self.totals, self.bytes_per_token)

    def to_json(self) -> dict[str, Any]:
        """The content of analysis.json; numbers that are not finite are null."""
        return analysis_tree(self.totals, self.maps)


def look(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    sink_thresholds: Sequence[float] = SINK_THRESHOLDS,
    bytes_per_token: float | None = None,
    decode: Decode | None = None,
    map_tokens: int = 48,
    max_maps: int = 24,
) -> Look:
    """Measure a decoder on `batches`, under whatever backend it has; nothing about it changes.

    The model is put in evaluation mode and back, gets no gradients and draws no random number.
    Memory beside the forward's: one layer's queries.

    bytes_per_token: of the text behind the batches, for bits per byte.
    decode: display strings of token ids, for the maps' axes; without it the ids are shown.
    map_tokens: attention maps show the first document of the first row, up to so many tokens;
        0 for no maps. max_maps: all heads of as many layers, spread over the depth, as fit.

    Raises:
        ValueError: no batches, or a model without layers to read.
    """
    inner = decoder(model)
    totals = Totals(inner, sink_thresholds)
    sample: Tensor | None = None
    with evaluation(inner), record(inner, totals.readers()):
        for batch in batches:
            placed = totals.begin(batch)
            if sample is None:
                sample = _first_document(placed, totals.layout)
            hidden = inner.hidden(placed.tokens, documents=placed.documents)
            totals.loss.add(inner, hidden, placed)
    totals.check()
    assert sample is not None
    maps = None
    if map_tokens and totals.layers:
        maps = _maps(inner, sample[:, :map_tokens], decode, max_maps)
    return Look(totals, maps, bytes_per_token)


def health(model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
    """The cheap part of a look, flat: attention, activations and gates; no loss, no maps."""
    inner = decoder(model)
    totals = Totals(inner, ())
    with evaluation(inner), record(inner, totals.readers()):
        for batch in batches:
            placed = totals.begin(batch)
            inner.hidden(placed.tokens, documents=placed.documents)
    totals.check()
    flat = flat_metrics(totals)
    return {name: value for name, value in flat.items() if split_mark(name)[0] in HEALTH_METRICS}


def _first_document(batch: Placed, layout: Layout) -> Int[Tensor, "1 t"]:
    """The first document of the first row."""
    begins = layout.begins[0].nonzero()
    start = int(begins[0]) if len(begins) else 0
    length = int(layout.document_tokens()[0, start])
    return batch.tokens[:1, start : start + length]


def _maps(
    model: Any, tokens: Int[Tensor, "1 t"], decode: Decode | None, max_maps: int
) -> dict[str, Any]:
    """Attention maps of one short document, from a forward of its own."""
    with evaluation(model), keep(model, ("q_rot_gated", "k_rot_gated")) as kept:
        model.hidden(tokens)
    ids = tokens[0].tolist()
    maps = {
        layer: attention_map(
            kept["q_rot_gated", layer][0],
            kept["k_rot_gated", layer][0],
            scale=attn.scale,
            window_tokens=attn.cfg.window_tokens,
        )
        for layer, attn in attention_layers(model).items()
    }
    return maps_entry([str(i) for i in ids] if decode is None else decode(ids), maps, max_maps)
