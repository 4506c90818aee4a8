"""Totals of an analysis in full detail: profiles, sinks by token, outputs, ranks, outliers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gatelm.analysis.probe.layout import Layout
from gatelm.analysis.probe.protocol import EMBEDDING, AttentionCall
from gatelm.analysis.statistics.massive import MassiveTotals
from gatelm.analysis.statistics.outputs import OutputTotals
from gatelm.analysis.statistics.profile import LEADING_KEYS, Carried, Profile, distance_edges
from gatelm.analysis.statistics.rank import RankTotals
from gatelm.analysis.statistics.sinks import SinkTokens
from gatelm.analysis.statistics.streaming import AttentionRows, WeightBlock, weight_blocks
from gatelm.nn.shapes import Float, Int, Tensor

Display = Callable[[int], str]
"""The display string of a token id."""

RANK_WORK = 4e11
"""Work limit of ranks: 3 width^3 for each of the layers, which are spread over the depth."""

MULTIPLIES_WITHIN = 0.02
"""A gate multiplies when before * scores is after, to this part of its norm (bf16 rounds)."""


class Details:
    """Statistics that cost a second pass over the weights or hold a matrix a layer."""

    def __init__(self, sink_threshold: float, num_layers: int, display: Display | None = None):
        """display: the string of a token id; without it the ids are shown."""
        self.num_layers, self.display = num_layers, display
        self.profiles: dict[int, Profile] = {}
        self.sinks = SinkTokens(sink_threshold)
        self.outputs: dict[int, OutputTotals] = {}
        self.ranks: dict[int, dict[str, RankTotals]] = {}
        self.massive = [MassiveTotals() for _ in range(num_layers + 1)]
        self.max_tokens = 0
        self._call: AttentionCall | None = None
        self._rows: AttentionRows | None = None
        self._gate: Tensor | None = None

    def begin(self, tokens: Int[Tensor, "B T"], layout: Layout) -> None:
        """Get ready for one batch."""
        self._tokens, self._layout = tokens, layout
        self.max_tokens = max(self.max_tokens, tokens.shape[1])

    def attention_rows(self, call: AttentionCall, rows: AttentionRows) -> None:
        """Add one layer's statistics; its second pass waits for the gate, until the layer ends."""
        self.sinks.add(call.layer, rows, self._tokens)
        self._call, self._rows, self._gate = call, rows, None

    def weights(self, layer: int, weights: Float[Tensor, "B N T T"], rows: AttentionRows) -> None:
        """Add a layer whose weights are given as a whole; the values they carry are not known."""
        self.sinks.add(layer, rows, self._tokens)
        size = weights.shape[2]
        profile = self.profiles.setdefault(layer, Profile(weights.shape[1]))
        profile.add([WeightBlock(0, size, 0, size, weights.float())], self._layout)

    def gate(self, layer: int, site: str, scores: Float[Tensor, "B T L W"]) -> None:
        """Hold the scores at `sdpa` for the second pass."""
        if site == "sdpa":
            self._gate = scores

    def heads(
        self, layer: int, before: Float[Tensor, "B T N H"], after: Float[Tensor, "B T N H"]
    ) -> None:
        """Add the concatenated heads to their rank, and note whether the gate is a factor."""
        if self._gate is not None and not _multiplies(before, self._gate, after):
            self._gate = None
        if self._has_rank(layer, after.shape[2] * after.shape[3]):
            self._rank(layer, "heads", after)
            if after is not before:
                self._rank(layer, "heads_before_gate", before)

    def branch(self, layer: int, y: Float[Tensor, "B T D"]) -> None:
        """Add the attention's output to its outliers and its rank."""
        self.outputs.setdefault(layer, OutputTotals()).add(y, self._layout)
        if self._has_rank(layer, y.shape[-1]):
            self._rank(layer, "branch", y)

    def residual(self, layer: int, h: Float[Tensor, "B T D"]) -> None:
        """Add massive activations, and run the layer's second pass, since the layer ends here."""
        self.massive[layer + 1].add(h, self._layout, self._tokens)
        if layer != EMBEDDING and self._call is not None and self._call.layer == layer:
            self._second_pass(self._call)
        if layer != EMBEDDING:
            self._call = self._rows = self._gate = None

    def _second_pass(self, call: AttentionCall) -> None:
        assert self._rows is not None
        if call.pattern is not None:  # shares by distance need keys in one piece
            return
        heads = call.q.shape[2]
        profile = self.profiles.setdefault(call.layer, Profile(heads))
        profile.add(
            weight_blocks(call, self._rows.lse, self._layout),
            self._layout,
            Carried(call.v, heads, self._gate),
            call.window_tokens,
        )

    def _has_rank(self, layer: int, width: int) -> bool:
        step = max(1, round(self.num_layers * 3 * float(width) ** 3 / RANK_WORK))
        return layer % step == 0 or layer == self.num_layers - 1

    def _rank(self, layer: int, name: str, vectors: Tensor) -> None:
        of_layer = self.ranks.setdefault(layer, {})
        of_layer.setdefault(name, RankTotals()).add(vectors, self._layout.valid)

    def tree(self) -> dict[str, Any]:
        """The part of analysis.json under "detail": lists over `layers`."""
        return {
            "layers": list(self.profiles),
            "leading_share": {
                str(m): [p.leading(m).tolist() for p in self.profiles.values()]
                for m in LEADING_KEYS
            },
            "leading_uniform": {
                str(m): [float(p.mean(f"leading_uniform/{m}")[0]) for p in self.profiles.values()]
                for m in LEADING_KEYS
            },
            "distance": self._distances(),
            "value_share": [p.carried_share("value").tolist() for p in self.profiles.values()],
            "gated_share": [p.carried_share("gated").tolist() for p in self.profiles.values()],
            "sinks": self._sinks(),
            "outputs": [{"layer": layer, **o.summary()} for layer, o in self.outputs.items()],
            "ranks": [
                {"layer": layer, "of": name, **rank.ranks()}
                for layer, of in self.ranks.items()
                for name, rank in of.items()
            ],
            "massive": [massive.summary(self.display) for massive in self.massive],
        }

    def _distances(self) -> dict[str, Any]:
        profiles = list(self.profiles.values())
        out: dict[str, Any] = {"edges": distance_edges(self.max_tokens)}
        for name, key in (
            ("distance", "mean"),
            ("distance_first", "on_first_token"),
            ("distance_uniform", "uniform"),
        ):
            out[key] = [p.mean(name).mean(dim=0).tolist() for p in profiles]
        return out

    def _sinks(self) -> dict[str, Any]:
        sinks = self.sinks
        return {
            "threshold": sinks.threshold,
            "total": sinks.total,
            "shares": sinks.shares(self.display),
            "tokens": sinks.top(self.display),
            "rate_by_position": [round(rate, 6) for rate in sinks.rate_by_position()],
            "by_layer": [
                {"layer": layer, "first": first, "other": other}
                for layer, (first, other) in sinks.by_layer.items()
            ],
        }


def _multiplies(before: Tensor, scores: Tensor, after: Tensor) -> bool:
    """Whether the gate multiplies, read off a sample of tokens; a gate may also add."""
    sample = slice(0, 64)
    expected = before[:, sample].float() * scores[:, sample].float()
    found = after[:, sample].float()
    return float((expected - found).norm()) <= MULTIPLIES_WITHIN * float(found.norm()) + 1e-30
