"""The report of an analysis: one model looked at, or several side by side, as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gatelm
from gatelm.report.charts import figures
from gatelm.report.charts.theme import Palette
from gatelm.report.model.attention import add_attention, add_model_maps, add_profiles, add_sinks
from gatelm.report.model.entry import Looked, read_looked
from gatelm.report.model.inside import add_activations, add_gates, add_ranks
from gatelm.report.model.summary import add_definitions, add_findings, add_models
from gatelm.report.model.tests import add_interventions, add_streaming
from gatelm.report.page import Page


def write_analysis(results: Mapping[str, Any], folder: Path) -> Path:
    """Write report.html and figures/ from the content of analysis.json.

    Raises:
        OSError: the folder cannot be written; an existing report is then untouched.
    """
    return figures.write_page(analysis_page(results), folder)


def analysis_page(results: Mapping[str, Any]) -> Page:
    """Build the page: findings first, then the evidence, then how it was measured."""
    models = read_looked(results)
    palette = Palette.of_arms(model.name for model in models)
    page = Page(_title(models), _lead(results, models), f"Written by gatelm {gatelm.__version__}.")
    page.section("Findings")
    add_findings(page, models, palette)
    add_models(page, models, palette)
    page.section("Attention")
    add_attention(page, models, palette)
    add_profiles(page, models, palette)
    page.section("Sinks")
    add_sinks(page, models, palette)
    add_model_maps(page, models)
    page.section("Activations")
    add_activations(page, models, palette)
    add_ranks(page, models, palette)
    if any(model.analysis.get("gates") or model.gate_note for model in models):
        page.section("Gates")
        add_gates(page, models, palette)
    if any(model.interventions for model in models):
        page.section("Interventions")
        add_interventions(page, models, palette)
    if any(model.streaming for model in models):
        page.section("Streaming")
        add_streaming(page, models, palette)
    page.section("How it was measured")
    add_definitions(page, results, models)
    return page


def _title(models: list[Looked]) -> str:
    names = [model.name for model in models]
    return f"Inside {names[0]}" if len(names) == 1 else f"Inside {len(names)} models"


def _lead(results: Mapping[str, Any], models: list[Looked]) -> str:
    text = results.get("text") or {}
    sizes = [(m.analysis.get("num_sequences"), m.analysis.get("seq_len")) for m in models]
    rows = [f"{n} rows of {length} tokens" for n, length in dict.fromkeys(sizes) if n and length]
    beside = f": {', '.join(rows)}" if rows else ""
    return f"{', '.join(m.name for m in models)} on {text.get('source', 'text')}{beside}."
