"""Labels and definitions of metrics, also of names that the analysis does not know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gatelm.analysis.metrics import registry


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
    """Describe the metric `name`, with its mark; an unregistered metric keeps its name."""
    try:
        metric = registry.describe(name)
    except ValueError:
        return Described(name, name.replace("_", " "), "No definition is recorded.", None, "")
    return Described(name, metric.label, metric.definition, metric.better, metric.unit or "")


def _lower(label: str) -> str:
    return label[:1].lower() + label[1:]
