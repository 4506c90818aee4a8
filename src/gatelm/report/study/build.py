"""The report of a study's folder: report.html and figures/."""

from __future__ import annotations

from pathlib import Path

import gatelm
from gatelm.report.charts import figures
from gatelm.report.charts.theme import Palette
from gatelm.report.load import Study, StudyPart, read_study
from gatelm.report.page import Page
from gatelm.report.study.attention import add_attention
from gatelm.report.study.causal import add_causal
from gatelm.report.study.inside import add_activations, add_gates
from gatelm.report.study.longer import longer_figures
from gatelm.report.study.outcome import add_arms, add_verdict, outcome_figures
from gatelm.report.study.published import add_published
from gatelm.report.study.record import add_definitions, add_repeat, add_runs
from gatelm.report.study.sentences import method, status
from gatelm.report.study.training import training_figures


def build_report(study_root: Path) -> Path:
    """Write report.html and figures/*.png and *.svg from results.json and the run folders.

    Returns:
        The path of report.html. A part-finished study gives a report that says so.

    Raises:
        ConfigError: there are no readable results in `study_root`.
        OSError: the folder cannot be written; an existing report is then untouched.
    """
    return figures.write_page(study_page(read_study(study_root)), study_root)


def study_page(study: Study) -> Page:
    """Build the report's page: verdicts first, then each part's evidence, then the record."""
    palette = Palette.of_arms(
        (arm for part in study.parts for arm in part.arms),
        (part.baseline for part in study.parts if part.baseline),
    )
    lead = f"{study.results.summary.strip()} {status(study)}.".strip()
    page = Page(study.title, lead, f"Written by gatelm {gatelm.__version__}.")
    page.section("Verdict")
    if not study.parts:
        page.note("This study has no parts yet.", "warning")
    for part in study.parts:
        add_verdict(page, part, palette)
    page.text(method([c for part in study.parts for c in part.comparisons]))
    for part in study.parts:
        _add_part(page, part, palette)
    add_published(page, study)
    if study.runs:
        add_runs(page, study, palette)
    add_definitions(page, study)
    add_repeat(page, study)
    return page


def _add_part(page: Page, part: StudyPart, palette: Palette) -> None:
    page.section(f"Evidence: {part.name}")
    add_arms(page, part, palette)
    page.charts([*longer_figures(part, palette), *outcome_figures(part, palette)])
    curves = training_figures(part, palette)
    if curves:
        page.section("Training", level=3)
        page.charts(curves)
    add_attention(page, part, palette)
    add_activations(page, part, palette)
    add_gates(page, part, palette)
    add_causal(page, part, palette)
