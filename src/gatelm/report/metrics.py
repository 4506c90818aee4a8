"""What a metric is called and means, for names with a mark (`accuracy_trigger`) too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

try:
    from gatelm.analysis.metrics import METRICS
except ImportError:
    METRICS = {}


@dataclass(frozen=True)
class Described:
    """A metric as the report prints it."""

    name: str
    label: str
    definition: str
    better: Literal["lower", "higher"] | None
    unit: str

    @property
    def axis(self) -> str:
        """Label with its unit, for an axis title."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def phrase(self) -> str:
        """The label inside a sentence: an initial capital is kept only in an abbreviation."""
        word = self.label.split(" ")[0]
        return self.label if len(word) > 1 and word[1:] != word[1:].lower() else _lower(self.label)


def describe(name: str) -> Described:
    """The metric `name`, or the metric it restricts to marked positions, or its bare name."""
    metric = METRICS.get(name)
    if metric is not None:
        return Described(name, metric.label, metric.definition, metric.better, metric.unit or "")
    for stem in sorted(METRICS, key=len, reverse=True):
        if name.startswith(stem + "_"):
            mark = name[len(stem) + 1 :].replace("_", "-")
            base = METRICS[stem]
            return Described(
                name,
                f"{base.label}, {mark} positions",
                f"{base.definition.rstrip('.')}; only the {mark} positions are counted.",
                base.better,
                base.unit or "",
            )
    return Described(name, name.replace("_", " "), "No definition is recorded.", None, "")


def _lower(label: str) -> str:
    return label[:1].lower() + label[1:]
