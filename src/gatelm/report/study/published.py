"""Published statements that the study speaks to, each with a verdict from its runs."""

from __future__ import annotations

from gatelm.report.load import Study
from gatelm.report.page import Column, Html, Page, badge, join
from gatelm.study.claims.check import Finding, check
from gatelm.study.claims.registry import load_registry
from gatelm.study.claims.table import ORDER, shortened, tally


def add_published(page: Page, study: Study) -> None:
    """Add a row per statement; nothing if the registry has none for this study."""
    findings = check(load_registry(), [study.results])
    if not findings:
        return
    page.section("Published statements")
    page.text(
        f"Checked by `gatelm study claims`: {tally(findings.values())}. A verdict is about the "
        "runs of this study, at their size."
    )
    ranked = sorted(shortened(findings).values(), key=lambda finding: ORDER.index(finding.verdict))
    page.table(
        [Column("Statement"), Column("Printed"), Column("Verdict"), Column("Found")],
        [
            [
                join(
                    finding.claim.statement, Html("<small>"), finding.claim.source, Html("</small>")
                ),
                finding.claim.published,
                badge(finding.verdict, finding.verdict),
                _found(finding),
            ]
            for finding in ranked
        ],
    )


def _found(finding: Finding) -> Html:
    lines = [finding.reason] * bool(finding.reason)
    for evidence in finding.evidence:
        same = evidence.verdict == finding.verdict
        lines.append(
            f"{evidence.where}: {'' if same else f'{evidence.verdict}: '}{evidence.figure}"
        )
    return join(*(piece for line in lines for piece in (line, Html("<br>"))))
