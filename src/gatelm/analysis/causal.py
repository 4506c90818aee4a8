"""What the gates do for the loss: forced open, shut, or to their mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from torch import nn

from gatelm.analysis.evaluation import evaluation
from gatelm.analysis.intervene import Change, by_layer, constant, intervene
from gatelm.analysis.layout import Batch
from gatelm.analysis.loss import LossTotals
from gatelm.analysis.taps import decoder, gate_sites
from gatelm.analysis.totals import Totals


@dataclass(frozen=True)
class Effect:
    """One intervention: the loss under it, and its increase over the model as it is.

    `increase_by_mark` is that of the marked targets. All in nats per token.
    """

    name: str
    loss: float
    increase: float
    increase_by_mark: Mapping[str, float]


def gate_interventions(
    model: nn.Module, batches: Sequence[Batch], *, layers: Sequence[int] | None = None
) -> list[Effect]:
    """Loss with all gates at score 1 ("open"), at 0 ("shut"), and at their mean ("mean").

    The mean is each head's and channel's over the tokens of `batches`, so "mean" turns an
    input-dependent gate into a static scale. Only gates of `layers` change, by default all. A gate
    that adds is off when shut. Nothing about the model changes.

    Raises:
        ValueError: the model has no gate there, or there are no batches.
    """
    inner = decoder(model)
    found = gate_sites(inner)
    if layers is not None:
        chosen = {layer % len(inner.layers) for layer in layers}
        found = [(layer, site) for layer, site in found if layer in chosen]
    if not found:
        raise ValueError("no gates to intervene on in these layers")
    plain, totals = _measure(inner, batches)
    effects: list[Effect] = []
    for name in ("open", "shut", "mean"):
        with ExitStack() as stack:
            for site in dict.fromkeys(site for _, site in found):
                at = [layer for layer, where in found if where == site]
                means = {layer: totals.gates[layer, site].channel_mean for layer in at}
                change: Change = {
                    "open": constant(1.0),
                    "shut": constant(0.0),
                    "mean": by_layer(means),
                }[name]
                stack.enter_context(intervene(inner, {f"{site}_gate": change}, layers=at))
            changed = _loss(inner, batches)
        effects.append(_effect(name, changed, plain))
    return effects


def _effect(name: str, changed: LossTotals, plain: LossTotals) -> Effect:
    by_mark = {mark: changed.loss(mark) - plain.loss(mark) for mark in plain.marks()}
    return Effect(name, changed.loss(), changed.loss() - plain.loss(), by_mark)


def _measure(model: nn.Module, batches: Sequence[Batch]) -> tuple[LossTotals, Totals]:
    totals = Totals(model, ())
    for batch in batches:
        hidden, placed = totals.measure(batch)
        totals.loss.add(totals.probe, hidden, placed)
    if not totals.num_sequences:
        raise ValueError("no batches to measure the loss on")
    return totals.loss, totals


def _loss(model: nn.Module, batches: Sequence[Batch]) -> LossTotals:
    inner = decoder(model)
    totals = Totals(model, ())
    with evaluation(model):
        for batch in batches:
            placed = totals.begin(batch)
            totals.loss.add(inner, inner.hidden(placed.tokens, documents=placed.documents), placed)
    if not totals.num_sequences:
        raise ValueError("no batches to measure the loss on")
    return totals.loss
