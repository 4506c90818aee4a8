"""Findings on published statements as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gatelm.report import markdown
from gatelm.study.claims.check import Finding
from gatelm.study.claims.table import ORDER, shortened, tally


def claims_markdown(findings: Mapping[str, Finding]) -> str:
    """Write one table per verdict: statement, source, printed figure, and the figures found."""
    blocks = [f"{len(findings)} published statements: {tally(findings.values())}."]
    shown = shortened(findings)
    for verdict in ORDER:
        rows = [
            [f"`{name}`", *_cells(finding)]
            for name, finding in shown.items()
            if finding.verdict == verdict
        ]
        if rows:
            head = ["claim", "statement", "printed", "found"]
            blocks.append(f"**{verdict.capitalize()}**")
            blocks.append(markdown.table(head, rows, ("left", "left", "left", "left")))
    return "\n\n".join(blocks)


def claims_page(findings: Mapping[str, Finding]) -> str:
    """Write `claims_markdown` as a document, with the commands that made the figures."""
    commands = dict.fromkeys(c for finding in findings.values() for c in finding.commands)
    blocks = ["# Published statements, checked", claims_markdown(findings)]
    if commands:
        blocks += ["The figures are from:", markdown.code("\n".join(commands))]
    return "\n\n".join(blocks)


def _cells(finding: Finding) -> list[str]:
    claim = finding.claim
    statement = f"{claim.statement} ({claim.source})"
    if claim.contradicts:
        statement += f"; contradicts {', '.join(f'`{name}`' for name in claim.contradicts)}"
    return [statement, claim.published, "; ".join(_found(finding))]


def _found(finding: Finding) -> Iterator[str]:
    if finding.reason:
        yield finding.reason
    for evidence in finding.evidence:
        same = evidence.verdict == finding.verdict
        yield f"{evidence.where}: {'' if same else f'{evidence.verdict}: '}{evidence.figure}"
