"""`gatelm study`: run, plan or report a study."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gatelm.study.plan import Plan
    from gatelm.study.run import Outcome

app = typer.Typer(help="Compare variants: plan, train and report a study.", no_args_is_help=True)

Recipe = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A study's YAML file, or the name of a shipped one.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Change a value, e.g. parts.mechanism.seeds=[0,1]; may be repeated.",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder of the results [default: runs/NAME].")
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        help="Runs trained at once; the CPUs are divided between them [default: one a CPU, to 8].",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


@app.command()
def run(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Out = None,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Train every run that has no result yet, then report.

    May be stopped (Ctrl-C) and started again at any time: finished runs are kept, others go on
    from their last checkpoint.
    """
    from rich.console import Console

    from gatelm.study.plan import plan
    from gatelm.study.progress import PlainDisplay, make_display
    from gatelm.study.run import run as run_plan
    from gatelm.study.spec import load_study

    console = Console(stderr=json)
    study = load_study(recipe, overrides or ())
    planned = plan(study)
    root = out or Path("runs") / study.name
    command = _command(recipe, overrides, out)
    display = make_display(console) if console.is_terminal else PlainDisplay(console.file)
    outcome = run_plan(planned, root, workers=workers, command=command, display=display)
    _finish(planned, root, json, outcome, workers)


@app.command()
def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Out = None,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """List the runs with parameters, FLOPs and time, without training anything."""
    import json as json_module

    from rich.console import Console

    from gatelm.study.estimate import estimate
    from gatelm.study.plan import plan as make_plan
    from gatelm.study.plan_table import plan_json, plan_table
    from gatelm.study.run import share_cpus
    from gatelm.study.spec import load_study

    study = load_study(recipe, overrides or ())
    planned = make_plan(study)
    root = out or Path("runs") / study.name
    count, threads = share_cpus(len(planned.runs), workers)
    times = estimate(planned, root, count, threads)
    if json:
        typer.echo(json_module.dumps(plan_json(planned, root, times), indent=1))
    else:
        Console().print(plan_table(planned, root, times, count, threads))


@app.command()
def report(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="The folder `gatelm study run` wrote.")
    ],
    json: Json = False,
) -> None:
    """Rebuild results and report of a study, finished or not."""
    from gatelm.config import ConfigError
    from gatelm.study.plan import plan as make_plan
    from gatelm.study.spec import load_study

    recipe = run_dir / "study.yaml"
    if not recipe.is_file():
        raise ConfigError(
            f"{run_dir}: no study.yaml there; name a folder that `gatelm study run` wrote"
        )
    _finish(make_plan(load_study(recipe)), run_dir, json)


def _finish(
    planned: Plan,
    root: Path,
    json: bool,
    outcome: Outcome | None = None,
    workers: int | None = None,
) -> None:
    """Write results and report, print the verdicts, and end with the status they deserve."""
    import json as json_module

    from rich.console import Console

    from gatelm.report.build import build_report
    from gatelm.study.results import write_results
    from gatelm.study.table import verdicts

    results = write_results(planned, root)
    page = build_report(root)
    if json:
        typer.echo(json_module.dumps(results, indent=1))
    else:
        console = Console()
        console.print(verdicts(results))
        console.print(f"results  {root / 'results.json'}  {root / 'results.csv'}", soft_wrap=True)
        console.print(f"report   {page}", soft_wrap=True)
    if outcome is None:
        return
    for failed, error in outcome.failed.items():
        typer.echo(f"failed: {failed.label}: {error} (see {root / failed.folder})", err=True)
    if outcome.stopped_by:
        again = results["command"] + (f" --workers {workers}" if workers else "")
        left = len(outcome.unfinished) + len(outcome.failed)
        typer.echo(
            f"stopped with {left} of {len(planned.runs)} runs to go; go on with: {again}", err=True
        )
        raise typer.Exit(130 if outcome.stopped_by == "SIGINT" else 143)
    if outcome.failed:
        typer.echo("the same command tries failed runs again", err=True)
        raise typer.Exit(1)


def _command(recipe: str, overrides: list[str] | None, out: Path | None) -> str:
    words = ["gatelm", "study", "run", recipe]
    for override in overrides or ():
        words += ["--set", override]
    return shlex.join([*words, "--out", str(out)] if out else words)
