"""Causal checks: the loss of a model without its gates, first values or massive activations.

Each intervention changes one thing in every layer and measures the loss on the same batches:
`interventions`. A study measures sinks too, but with the gates forced alone: `gate_effects`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import nn

from gatelm.analysis.loss import LossTotals
from gatelm.analysis.metrics.causal import causal_name
from gatelm.analysis.metrics.registry import CAUSAL_STEMS
from gatelm.analysis.metrics.summary import flat_metrics
from gatelm.analysis.outliers import Outliers, clamped, layer_names, set_to_mean
from gatelm.analysis.probe.gatelm_probe import as_probe
from gatelm.analysis.probe.interventions import constant, zero_tokens
from gatelm.analysis.probe.layout import Layout, Placed, TokenBatch
from gatelm.analysis.probe.protocol import Change, Observer, Probe
from gatelm.analysis.statistics.gates import GateTotals
from gatelm.analysis.statistics.totals import Totals
from gatelm.nn.shapes import Bool, Float, Tensor

GATE_MEAN_OF_THE_PAPER = 0.116
"""Mean elementwise gate of the 15B model in arXiv 2505.06708, table 4."""

CONTROL_SEED = 0

Progress = Callable[[str, int, int], None]
"""Called before each intervention: its name, how many are done, how many there are."""


@dataclass(frozen=True)
class Effect:
    """One intervention: the loss under it, and its increase over the model as it is.

    `increase_by_mark` is that of the marked targets. All in nats per token. skipped: why it could
    not be done; its numbers are NaN then.
    """

    name: str
    what: str
    loss: float
    increase: float
    increase_by_mark: Mapping[str, float] = field(default_factory=dict)
    skipped: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the effect as plain values, with null for a number that is not finite."""
        tree = asdict(self)
        tree["increase_by_mark"] = {k: _finite(v) for k, v in self.increase_by_mark.items()}
        return {**tree, "loss": _finite(self.loss), "increase": _finite(self.increase)}


def interventions(
    model: nn.Module | Probe,
    batches: Sequence[TokenBatch],
    *,
    layers: Collection[int] | None = None,
    constants: Sequence[float] = (GATE_MEAN_OF_THE_PAPER,),
    value_positions: Sequence[int] = (0,),
    progress: Progress | None = None,
) -> list[Effect]:
    """The loss of a decoder or probe as it is ("none"), and under each intervention that applies.

    gate_open, gate_shut: every score 1, as if there were no gate, or 0. gate_mean: each head's and
        channel's mean over the tokens of `batches`, which leaves a static scale. gate_constant_c:
        one score for all, for each c of `constants`. A gate that adds is off when shut.
    values_zero_p: the value vectors of position p of each document are zero, for each p of
        `value_positions`: attention stays, what it reads there is nothing. values_zero_control:
        the same at as many other positions, drawn at random.
    massive_clamp, massive_mean: massive activations (see `analysis.outliers`) kept within the
        largest |h| of the layer's other channels, or each replaced by the mean in its channel.

    What the model has not (a gate, a massive activation) is left out; what cannot be done to it is
    skipped, with the reason. Nothing about the model changes.
    layers: where to intervene, negative ones from the end; None: everywhere.

    Raises:
        ValueError: no batches, or a layer that does not exist.
    """
    probe = as_probe(model)
    chosen = _chosen(probe, layers)
    trial = _Trials(probe, batches, chosen)
    planned = [
        *trial.of_gates(constants),
        *trial.of_values(value_positions),
        *trial.of_outliers(),
    ]
    effects = [Effect("none", "the model as it is", trial.plain.loss(), 0.0)]
    for done, (name, what, changes) in enumerate(planned):
        if progress is not None:
            progress(name, done, len(planned))
        effects.append(trial.effect(name, what, changes))
    return effects


Changes = Callable[[Layout], Mapping[str, Change]]
Planned = tuple[str, str, Changes]


class _Trials:
    """One model on one set of batches: what was measured of it, and what to try."""

    def __init__(self, probe: Probe, batches: Sequence[TokenBatch], layers: Collection[int]):
        self.probe, self.batches, self.layers = probe, batches, layers
        self._seen = _Seen(layers)
        self.plain = self._loss(lambda layout: {}, self._seen)

    def of_gates(self, constants: Sequence[float]) -> Iterator[Planned]:
        """Yield the effects of changes to the gates in the chosen layers."""
        if not any(layer in self.layers for layer in self.probe.gate_sites):
            return

        def plan(name: str, what: str, change: Change) -> Planned:
            return f"gate_{name}", what, lambda layout: {"gate": self._where_chosen(change)}

        forced = forced_gates(self._seen.gates)
        yield plan("open", "every gate score is 1, as if there were no gate", forced["open"])
        yield plan("shut", "every gate score is 0", forced["shut"])
        yield plan("mean", "every gate score is its head's and channel's mean", forced["mean"])
        for value in constants:
            yield plan(f"constant_{value:g}", f"every gate score is {value:g}", constant(value))

    def of_values(self, positions: Sequence[int]) -> Iterator[Planned]:
        """Yield the effects of changes to the values at key positions, and of a control."""
        if not any(layer in self.layers for layer in self.probe.attention_layers):
            return

        def zero(where: Callable[[Layout], Bool[Tensor, "B T"]]) -> Changes:
            return lambda layout: {"values": self._where_chosen(zero_tokens(where(layout)))}

        for p in positions:
            what = f"the value vectors at position {p} of each document are zero"
            yield f"values_zero_{p}", what, zero(lambda layout, p=p: _at(layout, p))
        if positions:
            what = f"the same at {len(positions)} other position(s) of each document, at random"
            yield (
                "values_zero_control",
                what,
                zero(lambda layout: control_positions(layout, positions)),
            )

    def of_outliers(self) -> Iterator[Planned]:
        """Yield the effects of changes to massive activations, if there are any."""
        found = {
            layer: outliers.summary()
            for layer, outliers in self._seen.outliers.items()
            if outliers.channels
        }
        if not found:
            return
        channels = sorted({channel for each in found.values() for channel in each.channels})
        where = f"channel(s) {', '.join(map(str, channels))} after {layer_names(found)}"
        yield (
            "massive_clamp",
            f"{where} kept within the largest |h| of the layer's other channels",
            lambda layout: {"residual": self._where_chosen(clamped(found))},
        )
        yield (
            "massive_mean",
            f"each massive activation in {where} set to their mean in its channel",
            lambda layout: {"residual": self._where_chosen(set_to_mean(found, layout))},
        )

    def effect(self, name: str, what: str, changes: Changes) -> Effect:
        """Measure the loss under changes; a probe that cannot make them says why."""
        try:
            changed = self._loss(changes)
        except ValueError as error:
            return Effect(name, what, float("nan"), float("nan"), {}, str(error))
        plain = self.plain
        by_mark = {mark: changed.loss(mark) - plain.loss(mark) for mark in plain.marks()}
        return Effect(name, what, changed.loss(), changed.loss() - plain.loss(), by_mark)

    def _where_chosen(self, change: Change) -> Change:
        return lambda layer, tensor: change(layer, tensor) if layer in self.layers else tensor

    @torch.no_grad()
    def _loss(self, changes: Changes, seen: _Seen | None = None) -> LossTotals:
        totals = LossTotals()
        for batch in self.batches:
            placed = Placed.on(self.probe.device, batch)
            rows, num_tokens = placed.tokens.shape
            layout = Layout.of(placed.documents, rows, num_tokens, self.probe.device)
            if seen is not None:
                seen.layout = layout
            with self.probe.intervene(changes(layout)):
                hidden = placed.observe(self.probe, seen)
            totals.add(self.probe, hidden, placed)
        if not self.batches:
            raise ValueError("no batches to measure the loss on")
        return totals


class _Seen(Observer):
    """Gate means and outliers of the unchanged model."""

    def __init__(self, layers: Collection[int]):
        self.layers = layers
        self.layout: Layout
        self.gates: dict[tuple[int, str], GateTotals] = {}
        self.outliers: dict[int, Outliers] = {}

    def gate(self, layer: int, site: str, scores: Float[Tensor, "B T L W"]) -> None:
        if layer in self.layers:
            self.gates.setdefault((layer, site), GateTotals()).add(scores, self.layout, {})

    def residual(self, layer: int, h: Float[Tensor, "B T D"]) -> None:
        if layer in self.layers:
            self.outliers.setdefault(layer, Outliers()).add(h, self.layout)


def _chosen(probe: Probe, layers: Collection[int] | None) -> Collection[int]:
    count = probe.num_layers
    if layers is None:
        return range(count)
    for layer in layers:
        if not -count <= layer < count:
            raise ValueError(f"there is no layer {layer}: the model has {count}")
    return {layer % count for layer in layers}


def _at(layout: Layout, position: int) -> Bool[Tensor, "B T"]:
    return layout.valid & (layout.position == position)


def control_positions(layout: Layout, positions: Sequence[int]) -> Bool[Tensor, "B T"]:
    """Draw from each document's other positions as many as `positions` holds of it.

    Always the same for a layout; all others where there are too few.
    """
    generator = torch.Generator().manual_seed(CONTROL_SEED)
    order = torch.rand(layout.position.shape, generator=generator)
    named = torch.stack([_at(layout, p) for p in set(positions)]).any(dim=0).cpu()
    order = order.masked_fill(named | ~layout.valid.cpu(), 2.0)
    chosen = torch.zeros_like(named)
    for row, first in layout.begins.cpu().nonzero().tolist():
        document = (layout.first[row].cpu() == first) & layout.valid[row].cpu()
        wanted = int((named[row] & document).sum())
        ranked = order[row].masked_fill(~document, 2.0).argsort()[:wanted]
        chosen[row, ranked] = order[row, ranked] < 1.0
    return chosen.to(layout.valid.device)


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def forced_gates(gates: Mapping[tuple[int, str], GateTotals]) -> dict[str, Change]:
    """The change of gate scores by the names of `FORCED_GATES`, from the scores seen unchanged.

    A change is not told its site: the means of a layer come in the order in which its sites were
    seen, again and again.
    """
    by_layer: dict[int, list[Tensor]] = {}
    for (layer, _), totals in gates.items():
        by_layer.setdefault(layer, []).append(totals.channel_mean)
    means = {layer: itertools.cycle(sites) for layer, sites in by_layer.items()}
    return {
        "open": constant(1.0),
        "shut": constant(0.0),
        "mean": lambda layer, scores: next(means[layer]).to(scores).expand_as(scores),
    }


def gate_effects(model: nn.Module | Probe, batches: Iterable[TokenBatch]) -> dict[str, float]:
    """Changes of loss, first-token share and sink rate under gates forced open, shut, to means.

    Each is the forced model's value minus the model's own on the same batches, named by
    `causal_name`, for loss and share also by mark. See `FORCED_GATES` for the ways of forcing.
    Empty for a model without gates; what is not a number is left out. Four forwards; nothing about
    the model changes.

    Raises:
        ValueError: no batches.
    """
    probe = as_probe(model)
    if not probe.gate_sites:
        return {}
    kept = list(batches)
    plain = _measured(probe, kept, {})
    before = flat_metrics(plain)
    stems = [
        (stem, mark) for stem in CAUSAL_STEMS for mark in ("", *(f"_{m}" for m in plain.marks))
    ]
    out: dict[str, float] = {}
    for how, change in forced_gates(plain.gates).items():
        after = flat_metrics(_measured(probe, kept, {"gate": change}))
        for stem, mark in stems:
            name = stem + mark
            if name in before and name in after:
                out[causal_name(stem, how) + mark] = after[name] - before[name]
    return {name: change for name, change in out.items() if math.isfinite(change)}


def _measured(probe: Probe, batches: Sequence[TokenBatch], changes: Mapping[str, Change]) -> Totals:
    totals = Totals(probe, ())
    with probe.intervene(changes):
        for batch in batches:
            totals.add(batch)
    totals.check()
    return totals
