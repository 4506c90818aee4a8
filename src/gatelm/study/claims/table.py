"""Claims and findings for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gatelm.study.claims.check import Finding
from gatelm.study.claims.predicates import Verdict
from gatelm.study.claims.registry import SIZES, Claim

ORDER: tuple[Verdict, ...] = (
    "reproduced",
    "not reproduced",
    "not testable at this scale",
    "no data",
)
STYLES: dict[Verdict, str] = {
    "reproduced": "bold cyan",
    "not reproduced": "bold magenta",
    "not testable at this scale": "yellow",
    "no data": "dim",
}


def tally(findings: Iterable[Finding]) -> str:
    """Count findings by verdict: `3 reproduced, 1 not reproduced`."""
    counts = Counter(finding.verdict for finding in findings)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in ORDER if counts[verdict])


def shortened(findings: Mapping[str, Finding]) -> dict[str, Finding]:
    """Join the findings of table rows that could not be tested into one each."""
    groups: dict[str, list[tuple[str, Finding]]] = {}
    for name, finding in findings.items():
        table, row, _ = name.partition("/")
        silent = row and not finding.evidence
        key = f"{table} ({finding.verdict})" if silent else name
        groups.setdefault(key, []).append((name, finding))
    return {
        (members[0][0].partition("/")[0] if len(members) > 1 else members[0][0]): _together(members)
        for members in groups.values()
    }


def _together(members: Sequence[tuple[str, Finding]]) -> Finding:
    first = members[0][1]
    if len(members) == 1:
        return first
    arms = ", ".join(name.partition("/")[2] for name, _ in members)
    what = first.claim.statement.partition(":")[0]
    reasons = dict.fromkeys(finding.reason for _, finding in members)
    statement = f"{what} of {len(members)} arms: {arms}"
    claim = first.claim.replace(statement=statement, published="")
    reason = first.reason if len(reasons) == 1 else "no study here has these arms and the metric"
    return replace(first, claim=claim, reason=reason)


def findings_table(findings: Mapping[str, Finding]) -> RenderableType:
    """Make a table of each claim with its verdict and the figures behind it."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    shown = shortened(findings)
    for verdict in ORDER:
        for name, finding in shown.items():
            if finding.verdict == verdict:
                table.add_row(Text(verdict, STYLES[verdict]), _story(name, finding))
    commands = dict.fromkeys(c for finding in findings.values() for c in finding.commands)
    return Group(
        table,
        Text(tally(findings.values()) or "no claim speaks of these studies"),
        *(Text(f"figures from: {command}", style="dim") for command in commands),
    )


def _story(name: str, finding: Finding) -> Text:
    claim = finding.claim
    printed = f", printed: {claim.published}" if claim.published else ""
    text = Text(name, style="bold")
    text.append(f"  {claim.statement} ({claim.source}{printed})", style="not bold")
    if finding.reason:
        text.append(f"\n{finding.reason}", style="not bold dim")
    for evidence in finding.evidence:
        same = evidence.verdict == finding.verdict
        note = "" if same else f"{evidence.verdict}: "
        text.append(f"\n{evidence.where}: {note}{evidence.figure}", style="not bold")
    if claim.contradicts:
        text.append(f"\ncontradicts {', '.join(claim.contradicts)}", style="not bold dim")
    return text


def registry_table(claims: Mapping[str, Claim], counted: Mapping[str, Finding]) -> RenderableType:
    """Make a table of every claim with its studies and sizes, or what is known without a run."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("claim", overflow="fold", min_width=24)
    table.add_column("statement and source", overflow="fold")
    table.add_column("tested by", overflow="fold", min_width=16)
    for name, claim in claims.items():
        finding = counted.get(name)
        if finding is not None:
            tested = Text(finding.verdict, STYLES[finding.verdict])
        else:
            sizes = "any size" if claim.scales == SIZES else f"size {', '.join(claim.scales)}"
            tested = Text(f"{', '.join(claim.studies) or 'no study'} ({sizes})")
        printed = f"; printed: {claim.published}" if claim.published else ""
        table.add_row(Text(name), Text(f"{claim.statement} ({claim.source}{printed})"), tested)
    return Group(table, Text(f"{len(claims)} claims"))
