"""The verdicts of a study as a table for the terminal, and the plan before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gatelm.study.plan import setting_label
from gatelm.study.sentence import decimals

_STYLES = {
    "lower": "bold cyan",
    "higher": "bold magenta",
    "no difference": "dim",
    "too few seeds": "yellow",
    "diverged": "red",
}


def verdicts(results: Mapping[str, Any]) -> RenderableType:
    """One table a part: its primary metrics, every arm against the baseline."""
    tables: list[RenderableType] = []
    for name, part in results["parts"].items():
        tables.append(Text(f"{name}: {part['question'] or part['title']}", style="bold"))
        tables.append(_part_table(results, name, part))
        if part["note"]:
            tables.append(Text(part["note"], style="dim"))
        tables.append(Text(""))
    return Group(*tables, *_footnotes(results))


def _part_table(results: Mapping[str, Any], name: str, part: Mapping[str, Any]) -> Table:
    confidence = f"{100 * part['confidence']:g} %"
    table = Table(box=None, pad_edge=False, header_style="underline")
    table.add_column("metric")
    table.add_column("arm", overflow="fold")
    table.add_column("mean", justify="right")
    table.add_column(f"against {part['baseline']} [{confidence}]".replace("[", r"\["))
    table.add_column("seeds", justify="right")
    table.add_column("verdict")
    compared = {
        (c["metric"], c["arm"], str(c["axes"])): c
        for c in results["comparisons"]
        if c["part"] == name
    }
    for metric in part["primary_metrics"]:
        rows = [s for s in results["summaries"] if s["part"] == name and s["metric"] == metric]
        for index, row in enumerate(rows):
            comparison = compared.get((metric, row["arm"], str(row["axes"])))
            label = Text(setting_label(row["arm"], row["axes"]))
            table.add_row(
                metric if index == 0 else "",
                label,
                _mean(row),
                *_difference(comparison),
                end_section=index == len(rows) - 1,
            )
    return table


def _mean(row: Mapping[str, Any]) -> str:
    value = "-" if row["mean"] is None else f"{row['mean']:.{_places(row['mean'])}f}"
    return value + (f" ({row['diverged']} diverged)" if row["diverged"] else "")


def _places(value: float) -> int:
    return 3 if abs(value) < 100 else 1


def _difference(comparison: Mapping[str, Any] | None) -> tuple[Text, Text, Text]:
    if comparison is None:
        return Text("-", style="dim"), Text(""), Text("")
    c = comparison
    text = "-"
    if c["difference"] is not None:
        digits = decimals(c["difference"], c["low"], c["high"])
        text = f"{c['difference']:+.{digits}f}"
        if c["low"] is not None:
            text += f" [{c['low']:+.{digits}f}, {c['high']:+.{digits}f}]"
    verdict = c["verdict"]
    if verdict == "no difference" and c["minimum_detectable"]:
        size = c["minimum_detectable"]
        verdict += f" (would find {size:.{decimals(size)}f})"
    return Text(text), Text(str(c["n"])), Text(verdict, style=_STYLES[c["verdict"]])


def _footnotes(results: Mapping[str, Any]) -> list[RenderableType]:
    runs = results["runs"]
    out: list[RenderableType] = []
    for status, style in (("failed", "red"), ("diverged", "yellow"), ("unfinished", "yellow")):
        hit = [r for r in runs if r["status"] == status]
        if hit:
            names = ", ".join(
                f"{r['part']}/{setting_label(r['arm'], r['axes'])}/seed {r['seed']}"
                for r in hit[:6]
            )
            more = f" and {len(hit) - 6} more" if len(hit) > 6 else ""
            out.append(Text(f"{status}: {len(hit)} of {len(runs)} runs ({names}{more})", style))
    if any(c["family_size"] > 1 for c in results["comparisons"]):
        out.append(
            Text(
                "Verdicts use p values corrected (Holm) for all comparisons of a metric in a part; "
                "intervals are of one comparison alone.",
                style="dim",
            )
        )
    return out
