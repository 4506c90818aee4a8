"""One model of an analysis.json, as the sections of its report read it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gatelm.report.load import mapping
from gatelm.study.results.numbers import is_number, rounded

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Looked:
    """A model's entry: facts about it, flat metrics, and the tree of its look."""

    entry: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.entry.get("name"))

    @property
    def metrics(self) -> Mapping[str, Any]:
        return mapping(self.entry.get("metrics"))

    @property
    def analysis(self) -> Mapping[str, Any]:
        return mapping(self.entry.get("analysis"))

    @property
    def detail(self) -> Mapping[str, Any]:
        return mapping(self.analysis.get("detail"))

    @property
    def gate_note(self) -> str:
        return str(self.entry.get("gate_note") or "")

    @property
    def unread(self) -> Mapping[str, Any]:
        return mapping(self.entry.get("unread"))

    @property
    def interventions(self) -> Sequence[Mapping[str, Any]]:
        return self.entry.get("interventions") or ()

    @property
    def streaming(self) -> Mapping[str, Any]:
        return mapping(self.entry.get("streaming"))

    @property
    def layers(self) -> list[int]:
        """The layers whose attention was read."""
        return list(self.analysis.get("attention_layers") or ())

    @property
    def gates(self) -> list[Mapping[str, Any]]:
        return [mapping(gate) for gate in self.analysis.get("gates") or ()]

    def metric(self, name: str) -> float | None:
        value = self.metrics.get(name)
        return float(value) if is_number(value) else None  # type: ignore[arg-type]

    def rows(self, places: Iterable[object], values: Iterable[object], digits: int = 4) -> Rows:
        """Rows of a layer profile; what is no number is left out."""
        return [
            {
                "arm": self.name,
                "label": self.name,
                "seed": None,
                "place": str(place),
                "value": rounded(value, digits),
            }
            for place, value in zip(places, values, strict=False)
            if is_number(value)
        ]

    def depth(self, values: Any) -> Rows:
        """Values along the residual stream, the first of them the embedding's."""
        values = values if isinstance(values, list) else []
        return self.rows(["embedding", *range(len(values) - 1)], values)


def read_looked(results: Mapping[str, Any]) -> list[Looked]:
    """The models of an analysis.json, in order."""
    return [Looked(mapping(entry)) for entry in results.get("models") or ()]


def head_means(by_head: Any) -> list[float | None]:
    """The mean over heads of each layer's list."""
    means: list[float | None] = []
    for heads in by_head or ():
        known = [float(h) for h in heads if is_number(h)]
        means.append(sum(known) / len(known) if known else None)
    return means


def log_rows(rows: Rows) -> Rows:
    """Those that a logarithmic axis can show."""
    return [row for row in rows if row["value"] and row["value"] > 0]


def log_domain(rows: Rows, include: float | None = None) -> tuple[float, float]:
    """The range of a logarithmic axis, with a little room."""
    values = [row["value"] for row in rows] + ([] if include is None else [include])
    low, high = min(values), max(values)
    pad = max((high / low) ** 0.06, 1.02)
    return low / pad, high * pad
