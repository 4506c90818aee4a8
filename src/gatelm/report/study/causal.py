"""The effect of forcing the gates after training: the causal check of arms with gates."""

from __future__ import annotations

from dataclasses import dataclass

from gatelm.analysis.metrics.causal import FORCED_GATES, causal_name
from gatelm.analysis.metrics.registry import CAUSAL_STEMS
from gatelm.report.charts.theme import Palette
from gatelm.report.load import FINISHED, StudyPart
from gatelm.report.metrics import describe
from gatelm.report.page import Column, Page, swatch
from gatelm.study.results.numbers import common_decimals, decimals_for, fixed, is_number, mean

CAUSAL_METRICS = tuple(causal_name(stem, how) for stem in CAUSAL_STEMS for how in FORCED_GATES)

MOST_DECIMALS = 4

HOW = (
    "After training, each gated model ran again on held-out sequences with every gate score set to "
    "1 (open), to 0 (shut), or to its head's and channel's mean. Shown is what that changed, the "
    "mean over seeds with the lowest and the highest seed: a gate that does nothing changes "
    "nothing, and one that only scales, the same for every token, changes nothing at its mean. A "
    "gate after attention has no say in the attention of its own layer, so in a model of one layer "
    "it cannot change shares and rates."
)


@dataclass(frozen=True)
class CausalTable:
    """Table of forced gates: arms down, ways of forcing across; cells are texts."""

    head: list[str]
    hints: list[str]
    arms: list[tuple[str, str]]
    """The arm and label of each row."""
    rows: list[list[str]]


def causal_table(part: StudyPart) -> CausalTable | None:
    """Make the table; None if no finished run has been checked."""
    names = [m for m in CAUSAL_METRICS if any(is_number(r.metrics.get(m)) for r in part.finished())]
    arms: list[tuple[str, str]] = []
    values: list[list[list[float]]] = []
    for label, runs in part.groups().items():
        done = [run for run in runs if run.status == FINISHED]
        found = [[float(v) for r in done if is_number(v := r.metrics.get(m))] for m in names]
        if any(found):
            arms.append((runs[0].arm, label))
            values.append(found)
    if not arms:
        return None
    columns = [_cells([row[i] for row in values]) for i in range(len(names))]
    described = [describe(name) for name in names]
    return CausalTable(
        [metric.axis.replace(": change", "") for metric in described],
        [metric.definition for metric in described],
        arms,
        [[cells[i] for cells in columns] for i in range(len(arms))],
    )


def _cells(seeds: list[list[float]]) -> list[str]:
    """Format `mean (lowest to highest)` of each arm's seeds, with the same decimals."""
    means = [mean(values) for values in seeds]
    wanted = common_decimals(decimals_for(None, m, 3) for m in means if m is not None)
    places = min(wanted, MOST_DECIMALS)
    out = []
    for middle, values in zip(means, seeds, strict=True):
        text = fixed(middle, places, sign=True)
        if len(values) > 1:
            low, high = (fixed(v, places, sign=True) for v in (min(values), max(values)))
            text += f" ({low} to {high})"
        out.append(text)
    return out


def add_causal(page: Page, part: StudyPart, palette: Palette) -> None:
    """Add the table, if runs were checked."""
    table = causal_table(part)
    if table is None:
        return
    page.section("Gates forced open, shut, or to their mean", level=3)
    page.text(HOW)
    page.table(
        [
            Column("Arm"),
            *(Column(h, "right", hint) for h, hint in zip(table.head, table.hints, strict=True)),
        ],
        [
            [swatch(palette.of(arm), label), *cells]
            for (arm, label), cells in zip(table.arms, table.rows, strict=True)
        ],
        "Change in what was measured, mean over seeds (lowest to highest).",
    )
