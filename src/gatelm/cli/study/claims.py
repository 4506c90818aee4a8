"""`gatelm study claims`: published statements, and what a study says of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gatelm.cli.options import Json
from gatelm.cli.output import echo, print_json


def claims(
    run_dirs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN_DIR]...",
            help="Folders `gatelm study run` wrote; without any, all claims are listed.",
        ),
    ] = None,
    registry: Annotated[
        Path | None,
        typer.Option("--registry", help="A file of your own claims [default: the published ones]."),
    ] = None,
    as_json: Json = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown document.")
    ] = False,
) -> None:
    """Say of each published statement: reproduced, not reproduced, or not testable at this scale.

    Each verdict comes with its figures and the command they are from.
    """
    from gatelm.study.claims.check import check, without_runs
    from gatelm.study.claims.registry import load_registry
    from gatelm.study.claims.table import findings_table, registry_table
    from gatelm.study.results.schema import read_results

    known = load_registry(registry)
    if run_dirs:
        findings = check(known, [read_results(root) for root in run_dirs])
        table = findings_table(findings)
    else:
        claims = known.all()
        alone = {name: without_runs(name, claim) for name, claim in claims.items()}
        findings = {name: finding for name, finding in alone.items() if finding is not None}
        table = registry_table(claims, findings)
    if as_json and not run_dirs:
        listed = {name: claim.tree() for name, claim in known.all().items()}
        for name, finding in findings.items():
            listed[name]["finding"] = finding.to_json()
        print_json(listed)
    elif as_json:
        print_json([f.to_json() for f in findings.values()])
    elif markdown:
        from gatelm.report.study.claims import claims_page

        echo(claims_page(findings))
    else:
        from gatelm.cli.console import wide_console

        wide_console(120).print(table)
