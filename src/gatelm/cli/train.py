"""`gatelm train`: one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gatelm.cli.options import JsonResult, command_again
from gatelm.cli.output import echo, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatelm.train.config import RunConfig
    from gatelm.train.saving.folder import RunResult


STOP = "train.stop_at_step"


def train(
    recipe: Annotated[
        str,
        typer.Argument(metavar="RECIPE", help="A run's YAML file, or the name of a shipped one."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="PATH=VALUE", help="Change a value, e.g. optim.lr=1e-3; repeatable."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run [default: runs/NAME].")
    ] = None,
    resume: Annotated[
        Literal["auto", "never", "must"],
        typer.Option(
            "--resume",
            help="auto: start, or go on with the run in the folder. never: refuse a folder with a "
            "run. must: refuse a folder without one; train.total_steps may then be another.",
        ),
    ] = "auto",
    as_json: JsonResult = False,
) -> None:
    """Train one model, with checkpoints, metrics and a final look at its attention.

    Ctrl-C finishes the step and saves a checkpoint; the same command goes on from there. The exit
    status is 0 at the end and at train.stop_at_step, 128 and the signal's number (130 for Ctrl-C)
    when stopped early, 1 when training diverged. On several processes: torchrun --nproc-per-node 2
    --no-python gatelm train RECIPE.
    """
    import os

    from gatelm.cli.console import Console
    from gatelm.cli.progress import RunDisplay
    from gatelm.cli.recipe import load_run
    from gatelm.io.signals import StopSignals
    from gatelm.train.trainer import train as train_run

    cfg, _ = load_run(recipe, overrides or ())
    folder = out or Path("runs") / cfg.name
    is_main = os.environ.get("RANK", "0") == "0"
    console = Console(stderr=True, quiet=not is_main)
    was_there = (folder / "result.json").exists()
    try:
        with RunDisplay(console, cfg.name) as display, StopSignals() as stop:
            result = train_run(
                cfg, folder, resume=resume, report=display.report, should_stop=stop.requested
            )
    except OSError as error:
        echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    if is_main:
        again = command_again(
            "train", recipe, set=_going_on(overrides or (), cfg, result), out=[out]
        )
        if as_json:
            print_json({**result.to_json(), "folder": str(result.folder)}, indent=None)
        else:
            echo(_summary(result, cfg, again, was_there=was_there))
    if result.status == "diverged":
        raise typer.Exit(1)
    if result.status == "stopped":
        raise typer.Exit(stop.exit_status)


def _going_on(overrides: Sequence[str], cfg: RunConfig, result: RunResult) -> list[str]:
    """The overrides of a command that resumes a run, without the step at which it stopped."""
    if result.status != "stopped" or result.steps != cfg.train.stop_at_step:
        return list(overrides)
    kept = [text for text in overrides if text.partition("=")[0].strip() != STOP]
    return [*kept, f"{STOP}=null"]


def _summary(result: RunResult, cfg: RunConfig, again: str, *, was_there: bool) -> str:
    from gatelm.analysis.movement import sentence

    total = cfg.train.total_steps
    if result.status == "stopped":
        return f"stopped at step {result.steps} of {total}, saved; go on with: {again}"
    if result.status == "diverged":
        return (
            f"diverged at step {result.steps} of {total}: the loss or the gradients were not "
            f"finite; see {result.folder / 'metrics.jsonl'}. A lower optim.lr, a longer warm-up or "
            "train.spike_policy=skip may help"
        )
    shown = [
        f"  {name:<28} {value:.4g}"
        for name, value in result.metrics.items()
        if isinstance(value, (int, float))
    ]
    title = "already finished" if was_there else "finished"
    head = (
        f"{title}: {result.steps:,} steps, {result.tokens:,} tokens, {result.seconds:,.0f} s of "
        f"training in {result.precision}, {result.parameters:,} parameters "
        f"({result.gate_parameters:,} in gates)"
    )
    gates = sentence(result.metrics)
    moved = [] if gates is None else [gates]
    return "\n".join([head, *shown, *moved, f"model: {result.folder / 'model'}"])
