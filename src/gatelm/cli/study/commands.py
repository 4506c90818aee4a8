"""`gatelm study`: run, plan or report a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gatelm.cli.options import Json, command_again
from gatelm.cli.output import echo, print_json
from gatelm.cli.study import claims as claims_command
from gatelm.cli.study import curves as curves_command

if TYPE_CHECKING:
    from rich.console import Console

    from gatelm.data.prepare import PrepareProgress
    from gatelm.study.planning.plan import Plan
    from gatelm.study.results.schema import StudyResults
    from gatelm.study.running.run import Outcome

app = typer.Typer(help="Compare variants: plan, train and report a study.", no_args_is_help=True)

Rebuild = Literal["always", "if outdated", "never"]
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
        help="Runs trained at once; the CPUs are divided between them [default: one a CPU, to 8; "
        "one on a GPU].",
    ),
]
Reuse = Annotated[
    list[Path] | None,
    typer.Option(
        "--reuse",
        metavar="RUN_DIR",
        help="Copy results of equal runs from another study's folder; may be repeated.",
    ),
]


@app.command()
def run(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Out = None,
    workers: Workers = None,
    reuse: Reuse = None,
    as_json: Json = False,
) -> None:
    """Train every run that has no result yet, then report.

    May be stopped (Ctrl-C) and started again at any time: finished runs are kept, others go on
    from their last checkpoint.
    """
    from gatelm.cli.console import Console
    from gatelm.study.planning.estimate import estimate
    from gatelm.study.planning.plan import plan
    from gatelm.study.planning.plan_table import forecast
    from gatelm.study.planning.spec import continued, load_study
    from gatelm.study.running.progress import make_display
    from gatelm.study.running.resources import share
    from gatelm.study.running.run import run as run_plan

    console = Console(stderr=True)
    study = load_study(recipe, overrides or ())
    root = out or Path("runs") / study.name
    planned = plan(continued(study, root))
    _prepare(planned, console)
    times = estimate(planned, root, share(planned, workers))
    if times.seconds:
        console.print(forecast(planned, times), markup=False, highlight=False)
    outcome = run_plan(
        planned,
        root,
        workers=workers,
        reuse=reuse or (),
        command=command_again(
            "study run", recipe, set=overrides or (), out=[out], reuse=reuse or ()
        ),
        display=make_display(console, times.seconds),
    )
    when_done: Rebuild = "never" if outcome.stopped_by else "if outdated"
    results = _finish(planned, root, as_json, when_done)
    _tell(outcome, planned, root, results.command, workers)


@app.command()
def plan(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Out = None,
    workers: Workers = None,
    flops_per_second: Annotated[
        float | None,
        typer.Option(
            "--flops-per-second",
            min=1.0,
            help="Estimate the time at this speed of a run, as 1e14, not at this machine's.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the runs with parameters, FLOPs and time, without training anything."""
    from gatelm.cli.console import Console
    from gatelm.study.planning.estimate import estimate
    from gatelm.study.planning.plan import plan as make_plan
    from gatelm.study.planning.plan_table import plan_json, plan_table
    from gatelm.study.planning.spec import continued, load_study
    from gatelm.study.running.resources import share

    study = load_study(recipe, overrides or ())
    root = out or Path("runs") / study.name
    planned = make_plan(continued(study, root))
    resources = share(planned, workers)
    times = estimate(planned, root, resources, flops_per_second)
    if as_json:
        print_json(plan_json(planned, root, times))
    else:
        Console().print(plan_table(planned, root, times, resources))


@app.command()
def report(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="The folder `gatelm study run` wrote.")
    ],
    as_json: Json = False,
) -> None:
    """Rebuild results and report of a study, finished or not."""
    from gatelm.config import ConfigError
    from gatelm.study.planning.plan import plan as make_plan
    from gatelm.study.planning.spec import load_study

    recipe = run_dir / "study.yaml"
    if not recipe.is_file():
        raise ConfigError(
            f"{run_dir}: no study.yaml there; name a folder that `gatelm study run` wrote"
        )
    _finish(make_plan(load_study(recipe)), run_dir, as_json, "always")


@app.command()
def export(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="The folder `gatelm study run` wrote.")
    ],
    folder: Annotated[
        Path, typer.Argument(metavar="DEST", help="Where README.md, SVGs and results.csv go.")
    ],
) -> None:
    """Write a study's outcome as Markdown with small figures, to keep beside source.

    A section `## Reading` that you write into DEST/README.md stays when you export again.
    """
    from gatelm.report.study.export import export_study

    for path in export_study(run_dir, folder):
        echo(path)


app.command()(claims_command.claims)
app.command()(curves_command.curves)


def _prepare(planned: Plan, console: Console) -> None:
    """Prepare the plan's corpora, with a line that says what is prepared."""
    from gatelm.study.running.data import prepare_data

    phases: set[str] = set()

    def report(progress: PrepareProgress) -> None:
        if progress.phase not in phases:
            phases.add(progress.phase)
            console.print(f"preparing data: {progress.phase}", markup=False)

    prepare_data(planned, report)


def _finish(planned: Plan, root: Path, as_json: bool, rebuild: Rebuild) -> StudyResults:
    """Write results and report, and print the verdicts."""

    from gatelm.study.results.collect import write_results
    from gatelm.study.results.table import verdicts

    results = write_results(planned, root)
    page = root / "report.html"
    if rebuild == "always" or (rebuild == "if outdated" and not _is_current(page, results, root)):
        from gatelm.report.study.build import build_report

        page = build_report(root)
    if as_json:
        print_json(results.model_dump())
        return results
    from gatelm.cli.console import wide_console

    console = wide_console()
    console.print(verdicts(results))
    console.print(f"results  {root / 'results.json'}  {root / 'results.csv'}", soft_wrap=True)
    if rebuild == "never":
        console.print(f"report   gatelm study report {root}", soft_wrap=True)
    else:
        console.print(f"report   {page}", soft_wrap=True)
    return results


def _is_current(page: Path, results: StudyResults, root: Path) -> bool:
    """Whether every run is done and the page was built from these results."""
    if any(run.status not in ("finished", "diverged") for run in results.runs):
        return False
    written = (root / "results.json").stat().st_mtime_ns
    return page.is_file() and page.stat().st_mtime_ns > written


def _tell(outcome: Outcome, planned: Plan, root: Path, command: str, workers: int | None) -> None:
    """Say on stderr what is left to do.

    The exit status is 128 and the signal's number for a study that was stopped, 1 for failed runs.
    """
    for failed, error in outcome.failed.items():
        where = root / failed.folder / "failure.txt"
        echo(f"failed: {failed.label}: {error} (see {where})", err=True)
    left = len(outcome.unfinished) + len(outcome.failed)
    if left:
        why = f"stopped by {outcome.stopped_by.name}, " if outcome.stopped_by else ""
        again = command + (f" --workers {workers}" if workers else "")
        total = len(planned.runs)
        echo(f"{why}{left} of {total} runs to go; go on with: {again}", err=True)
    if outcome.stopped_by:
        raise typer.Exit(128 + outcome.stopped_by)
    if outcome.failed:
        raise typer.Exit(1)
