"""How far a model's gates moved from those that it started with, on the same tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from gatelm.analysis.metrics.registry import read_subject
from gatelm.analysis.probe.gatelm_probe import GatelmProbe
from gatelm.analysis.probe.layout import Layout, Placed, TokenBatch
from gatelm.analysis.probe.protocol import Observer
from gatelm.analysis.statistics.gates import GateTotals
from gatelm.analysis.statistics.precise import double
from gatelm.nn.shapes import Float, Tensor

MOVED = 0.01
"""Gates whose scores changed by less than this on average are called unmoved."""

Place = tuple[int, str]


@dataclass
class Movement:
    """Scores of each gate at the start and at the end, and the change of its weights."""

    gates: dict[Place, dict[str, float]]
    weights: dict[str, float] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """Flat metrics by their names in `registry.METRICS`; each gate weighs the same in means."""
        return read_subject("movement", self) if self.gates else {}

    def to_json(self) -> list[dict[str, Any]]:
        """Return one entry for each gate, in the order of the model."""
        return [{"layer": layer, "site": site, **e} for (layer, site), e in self.gates.items()]


def sentence(metrics: Mapping[str, float | None]) -> str | None:
    """Say in words how far a run's gates moved; None if the start was not compared."""
    change, start = metrics.get("gate_score_change"), metrics.get("gate_mean_start")
    if change is None or start is None:
        return None
    what = f"scores changed by {change:.4f} on average"
    mean, token_std = metrics.get("gate_mean"), metrics.get("gate_token_std")
    if mean is not None:
        what += f", their mean from {start:.3f} to {mean:.3f}"
    if token_std is not None:
        what += f"; they vary by {token_std:.4f} over tokens"
    if change < MOVED:
        return (
            f"the gates hardly moved: {what}. More steps, a larger optim.groups.gates.lr_scale or "
            "another start may help"
        )
    return f"the gates moved: {what}"


def gate_movement(start: nn.Module, end: nn.Module, batches: Iterable[TokenBatch]) -> Movement:
    """Compare two decoders of the same gates; neither changes.

    score_change: mean over tokens, heads and channels of |score at the end - score at the start|,
    both models reading the same tokens. weight_change: root mean square change of the gate's
    parameters; relative_change: norm of the change over that at the start, absent from zero.

    Raises:
        ValueError: when their gates differ, or there are no batches.
    """
    ours, theirs = GatelmProbe(end), GatelmProbe(start)
    if ours.gate_sites != theirs.gate_sites:
        raise ValueError("the two models have gates at different sites")
    totals: dict[Place, _Pair] = {}
    for batch in batches:
        placed = Placed.on(ours.device, batch)
        rows, num_tokens = placed.tokens.shape
        layout = Layout.of(placed.documents, rows, num_tokens, ours.device)
        before, after = _Scores(), _Scores()
        theirs.observe(placed.tokens, placed.documents, before)
        ours.observe(placed.tokens, placed.documents, after)
        for place, scores in after.scores.items():
            totals.setdefault(place, _Pair()).add(before.scores[place], scores, layout)
    if ours.gate_sites and not totals:
        raise ValueError("no batches to look at the gates with")
    weights = _Weights(start, end)
    gates = {place: pair.entry() | weights.entry(place) for place, pair in totals.items()}
    return Movement(gates, weights.overall())


class _Scores(Observer):
    """The gates' scores of one forward."""

    def __init__(self) -> None:
        self.scores: dict[Place, Tensor] = {}

    def gate(self, layer: int, site: str, scores: Float[Tensor, "B T L W"]) -> None:
        self.scores[layer, site] = scores.detach().clone()


class _Pair:
    """Sums over one gate's scores at the start and at the end."""

    def __init__(self) -> None:
        self.start, self.end = GateTotals(), GateTotals()
        self._change: Tensor | float = 0.0

    def add(self, start: Tensor, end: Tensor, layout: Layout) -> None:
        self.start.add(start, layout, {})
        self.end.add(end, layout, {})
        change = double(end[layout.valid]) - double(start[layout.valid])
        self._change = self._change + change.abs().sum(dim=0)

    def entry(self) -> dict[str, float]:
        assert isinstance(self._change, Tensor)
        by_head = (self._change / max(self.end.tokens, 1)).mean(dim=-1)
        return {
            "start_mean": self.start.mean,
            "mean": self.end.mean,
            "score_change": float(by_head.mean()),
            "largest_head_change": float(by_head.max()),
            "start_token_std": self.start.token_std,
            "token_std": self.end.token_std,
        }


class _Weights:
    """Squared norms of the gates' parameters and of their changes."""

    def __init__(self, start: nn.Module, end: nn.Module) -> None:
        self._sums: dict[Place, tuple[float, float, int]] = {}
        at_start = dict(start.named_parameters())
        for name, parameter in end.named_parameters():
            place = _place(name)
            if place is None:
                continue
            old, new = double(at_start[name].detach()), double(parameter.detach())
            change, norm, count = self._sums.get(place, (0.0, 0.0, 0))
            self._sums[place] = (
                change + float((new.cpu() - old.cpu()).square().sum()),
                norm + float(old.square().sum()),
                count + parameter.numel(),
            )

    def entry(self, place: Place) -> dict[str, float]:
        sums = self._sums.get(place)
        return {} if sums is None else _changes(*sums, "weight_change", "relative_change")

    def overall(self) -> dict[str, float]:
        if not self._sums:
            return {}
        change, norm, count = (sum(column) for column in zip(*self._sums.values(), strict=True))
        names = "gate_weight_change", "gate_weight_change_relative"
        return _changes(float(change), float(norm), int(count), *names)


def _changes(change: float, norm: float, count: int, rms: str, relative: str) -> dict[str, float]:
    out = {rms: (change / count) ** 0.5}
    return {**out, relative: (change / norm) ** 0.5} if norm > 0 else out


def _place(name: str) -> Place | None:
    """(3, "sdpa") of "layers.3.attn.gates.sdpa.proj.x.weight"."""
    parts = name.split(".")
    if "gates" not in parts or "layers" not in parts:
        return None
    layer, site = parts[parts.index("layers") + 1], parts[parts.index("gates") + 1]
    return int(layer), site
