"""`gatelm study curves`: loss spikes in recorded curves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatelm.cli.options import Json
from gatelm.cli.output import print_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gatelm.study.results.curves import Curve
    from gatelm.study.results.spikes import Spikes, Stability


def curves(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="metrics.jsonl or a run's folder, .csv, or a dictionary of steps and losses in "
            ".json or .pt.",
        ),
    ],
    rules: Annotated[
        list[str] | None,
        typer.Option(
            "--rule",
            help="olmo-core, olmo2, mosaic, mosaic-outlier, palm; may be repeated [default: "
            "olmo-core].",
        ),
    ] = None,
    column: Annotated[
        str | None, typer.Option("--column", help="Which values, e.g. grad_norm [default: loss].")
    ] = None,
    from_step: Annotated[
        int, typer.Option("--from-step", min=0, help="Count spikes from this step on.")
    ] = 0,
    window: Annotated[
        int | None,
        typer.Option("--window", help="Values a rule looks back on, instead of its own."),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option("--threshold", help="A rule's threshold, instead of its own.")
    ] = None,
    merge_steps: Annotated[
        int, typer.Option("--merge-steps", min=0, help="Flags no further apart are one event.")
    ] = 200,
    chart: Annotated[
        Path | None,
        typer.Option("--chart", help="Draw the curves and the spikes to this SVG file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Count the loss spikes of training curves by documented rules, several curves side by side."""
    from gatelm.config import ConfigError
    from gatelm.config.base import nearest
    from gatelm.study.results.curves import read_curve
    from gatelm.study.results.spikes import RULES, adjusted, find_spikes, stability

    names = list(dict.fromkeys(rules or ["olmo-core"]))
    for name in names:
        if name not in RULES:
            raise ConfigError(f"--rule {name}: no such rule; {nearest(name, RULES)}")
    try:
        chosen = {name: adjusted(RULES[name], window, threshold) for name in names}
    except ValueError as error:
        raise ConfigError(f"--window: {error}") from None
    if chart is not None and chart.suffix != ".svg":
        raise ConfigError(f"--chart {chart}: only .svg files are drawn")
    found: list[tuple[Curve, list[Spikes], Stability]] = []
    for curve in _named(read_curve(file, column) for file in files):
        spikes = [
            find_spikes(
                curve.steps,
                curve.values,
                rule,
                name=name,
                from_step=from_step,
                merge_steps=merge_steps,
            )
            for name, rule in chosen.items()
        ]
        found.append((curve, spikes, stability(curve.steps, curve.values, from_step=from_step)))
    if chart is not None:
        from gatelm.report.charts.curves import Drawn, write_chart

        write_chart([Drawn(c, s[0]) for c, s, _ in found], chart, from_step=from_step)
    if as_json:
        print_json([_json(*entry) for entry in found])
        return
    from gatelm.cli.console import wide_console

    console = wide_console()
    console.print(_table(found))
    for name, rule in chosen.items():
        console.print(f"{name}: {rule.definition}.", style="dim", highlight=False)
        if window is not None or threshold is not None:
            text = f"here: window {rule.window}, threshold {rule.threshold:g}."
            console.print(f"  {text}", style="dim", highlight=False)
    if chart is not None:
        console.print(f"chart  {chart}", soft_wrap=True)


def _named(curves: Any) -> list[Curve]:
    """Read the curves and give them different names."""
    from dataclasses import replace

    out: list[Curve] = []
    for curve in curves:
        taken = [c.name for c in out]
        number = sum(name == curve.name or name.startswith(f"{curve.name} (") for name in taken)
        out.append(replace(curve, name=f"{curve.name} ({number + 1})") if number else curve)
    return out


def _json(curve: Curve, spikes: list[Spikes], stable: Stability) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "file": curve.name,
        "column": curve.column,
        "points": len(curve.steps),
        "first_step": int(curve.steps[0]),
        "last_step": int(curve.steps[-1]),
        **stable.to_json(),
        "rules": [asdict(found) for found in spikes],
    }


def _table(found: list[tuple[Curve, list[Spikes], Stability]]) -> RenderableType:
    """Format the results as a table with one column per curve."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for curve, _, _ in found:
        table.add_column(curve.name, justify="right", overflow="fold")
    rows: dict[str, list[str]] = {"points": [], "steps": []}
    for curve, spikes, stable in found:
        cells = {
            "points": f"{len(curve.steps):,}",
            "steps": f"{curve.steps[0]:,} to {curve.steps[-1]:,}",
        }
        for s in spikes:
            cells[f"{s.rule}: flags"] = f"{s.flags:,} of {s.points:,}"
            cells[f"{s.rule}: share"] = f"{100 * s.score:.3f} %"
            cells[f"{s.rule}: events"] = f"{len(s.events):,}"
        cells |= {
            "not finite": f"{stable.not_finite:,}",
            "largest excess": _at(stable.max_excess, stable.max_excess_step),
            **{f"points more than {k} above": f"{n:,}" for k, n in stable.points_above.items()},
            "mean of the last twentieth": _number(stable.last_mean),
        }
        for name, cell in cells.items():
            rows.setdefault(name, []).append(cell)
    for name, row in rows.items():
        table.add_row(name, *row)
    return table


def _at(value: float | None, step: int | None) -> str:
    return "-" if value is None or step is None else f"{value:.3f} at step {step:,}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
