"""Colours and type of every chart: one colour an arm, everywhere, safe for colour-blind readers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import altair as alt

BASELINE = "#4a4a4a"
ARM_COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#882255",
    "#8a7a1f",
    "#6a51a3",
    "#44aa99",
)
"""Okabe and Ito's colours without yellow (too light on white), then four of Tol's and Brewer's."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
INK, MUTED, GRID = "#222222", "#666666", "#e8e8e8"
SEQUENTIAL = "viridis"

CONFIG: dict[str, Any] = {
    "font": FONT,
    "background": "white",
    "view": {"stroke": None},
    "axis": {
        "gridColor": GRID,
        "domainColor": "#999999",
        "tickColor": "#999999",
        "labelColor": INK,
        "labelFontSize": 11,
        "titleColor": INK,
        "titleFontSize": 11.5,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelLimit": 130,
    },
    "title": {
        "anchor": "start",
        "color": INK,
        "fontSize": 13,
        "fontWeight": 600,
        "subtitleColor": MUTED,
        "subtitleFontSize": 11.5,
        "offset": 10,
    },
    "legend": {
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "labelLimit": 150,
        "symbolStrokeWidth": 2,
    },
}


@dataclass(frozen=True)
class Palette:
    """The colours of arms."""

    colors: dict[str, str]

    @classmethod
    def of_arms(cls, arms: Iterable[str], baselines: Iterable[str] = ()) -> Palette:
        """Give baselines grey, and the other arms the colours in order of appearance."""
        grey = set(baselines)
        others = [arm for arm in dict.fromkeys(arms) if arm not in grey]
        colors = dict.fromkeys(sorted(grey), BASELINE)
        colors |= {arm: ARM_COLORS[i % len(ARM_COLORS)] for i, arm in enumerate(others)}
        return cls(colors)

    def of(self, arm: str) -> str:
        """Return the colour of an arm."""
        return self.colors.get(arm, BASELINE)

    def scale(self, arms: Iterable[str]) -> alt.Scale:
        """Return the colour scale of a chart with these arms."""
        arms = list(dict.fromkeys(arms))
        return alt.Scale(domain=arms, range=[self.of(arm) for arm in arms])
