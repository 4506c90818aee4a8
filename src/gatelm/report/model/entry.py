"""One model of an analysis.json, as the sections of its report read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gatelm.report.load import mapping
from gatelm.study.results.numbers import is_number, mean


@dataclass(frozen=True)
class Looked:
    """A model's entry: facts about it, flat metrics, and the tree of its analysis."""

    entry: Mapping[str, Any]
    seed: None = None
    """A model has no seed."""

    @property
    def name(self) -> str:
        """The model's name, which is also its label and decides its colour."""
        return str(self.entry.get("name"))

    arm = label = name

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Values by the names of the metric registry."""
        return mapping(self.entry.get("metrics"))

    @property
    def analysis(self) -> Mapping[str, Any]:
        """The tree of the model's analysis, by layer and head."""
        return mapping(self.entry.get("analysis"))

    @property
    def detail(self) -> Mapping[str, Any]:
        """The part of the analysis that only `gatelm analyze` measures."""
        return mapping(self.analysis.get("detail"))

    @property
    def gate_note(self) -> str:
        """Reason for which gates were not read; empty if they were, or if there are none."""
        return str(self.entry.get("gate_note") or "")

    @property
    def unread(self) -> Mapping[str, Any]:
        """Reasons by the layers whose attention was not read."""
        return mapping(self.entry.get("unread"))

    @property
    def interventions(self) -> Sequence[Mapping[str, Any]]:
        """The loss with parts of the model changed, one record a change."""
        return self.entry.get("interventions") or ()

    @property
    def streaming(self) -> Mapping[str, Any]:
        """The loss of a long text in a window cache."""
        return mapping(self.entry.get("streaming"))

    @property
    def layers(self) -> list[int]:
        """The layers whose attention was read."""
        return list(self.analysis.get("attention_layers") or ())

    def metric(self, name: str) -> float | None:
        """Return a metric's value; None if it was not measured."""
        value = self.metrics.get(name)
        return float(value) if is_number(value) else None


def read_looked(results: Mapping[str, Any]) -> list[Looked]:
    """Read the models of an analysis.json, in order."""
    return [Looked(mapping(entry)) for entry in results.get("models") or ()]


def head_means(by_head: Any) -> list[float | None]:
    """Return the mean over heads of each layer's list."""
    return [mean(heads) for heads in by_head or ()]
