"""What a model's gates do for its loss and its sinks: both are measured with the gates forced.

The cheap check that a study makes after each run; `analysis.causal` has more interventions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from torch import nn

from gatelm.analysis.metrics.causal import causal_name
from gatelm.analysis.metrics.registry import CAUSAL_STEMS
from gatelm.analysis.metrics.summary import flat_metrics
from gatelm.analysis.probe.interventions import Change, by_layer, constant, intervene
from gatelm.analysis.probe.layout import TokenBatch
from gatelm.analysis.probe.taps import decoder, gate_sites
from gatelm.analysis.statistics.totals import Totals
from gatelm.nn.shapes import Tensor


def gate_effects(model: nn.Module, batches: Iterable[TokenBatch]) -> dict[str, float]:
    """Changes of loss, first-token share and sink rate under gates forced open, shut, to means.

    Each is the forced model's value minus the model's own on the same batches, named by
    `registry.causal_name`, for loss and share also by mark. open, shut: every score is 1, or 0.
    mean: each head's and channel's mean over the tokens of `batches`. Empty for a model without
    gates; what is not a number is left out. Four forwards; nothing about the model changes.

    Raises:
        ValueError: no batches.
    """
    if not gate_sites(decoder(model)):
        return {}
    kept = list(batches)
    plain = _measured(model, kept, {})
    before = flat_metrics(plain)
    names = [(stem, name) for stem in CAUSAL_STEMS for name in (stem, *_marked(stem, plain.marks))]
    out: dict[str, float] = {}
    for how, changes in _forced(plain).items():
        after = flat_metrics(_measured(model, kept, changes))
        out |= {
            causal_name(stem, how) + name.removeprefix(stem): after[name] - before[name]
            for stem, name in names
            if name in before and name in after
        }
    return {name: change for name, change in out.items() if math.isfinite(change)}


def _marked(stem: str, marks: Iterable[str]) -> list[str]:
    return [f"{stem}_{mark}" for mark in marks]


def _forced(plain: Totals) -> dict[str, dict[str, Change]]:
    """By way of forcing, the change at each gate's tap."""
    means: dict[str, dict[int, Tensor]] = {}
    for (layer, site), totals in plain.gates.items():
        means.setdefault(site, {})[layer] = totals.channel_mean
    return {
        "open": {f"{site}_gate": constant(1.0) for site in means},
        "shut": {f"{site}_gate": constant(0.0) for site in means},
        "mean": {f"{site}_gate": by_layer(mean) for site, mean in means.items()},
    }


def _measured(
    model: nn.Module, batches: Sequence[TokenBatch], changes: Mapping[str, Change]
) -> Totals:
    totals = Totals(model, ())
    with intervene(totals.probe.model, changes):  # type: ignore[attr-defined]
        for batch in batches:
            hidden, placed = totals.measure(batch)
            totals.loss.add(totals.probe, hidden, placed)
    totals.check()
    return totals
