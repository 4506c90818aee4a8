"""The record: every run, every metric's definition, and how to repeat the study."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import yaml

from gatelm.report.charts.theme import Palette
from gatelm.report.load import RunRecord, Study, StudyPart
from gatelm.report.metrics import describe
from gatelm.report.page import Column, Html, Page, badge, join, swatch
from gatelm.study.results.numbers import MISSING, column, count, duration

DRAWN = ("first_token_share", "max_activation", "norm_ratio", "gate_mean")
"""Metrics that the charts show, even if a part does not name them."""


def add_runs(page: Page, study: Study, palette: Palette) -> None:
    """Add one row per run, also for runs that diverged, stopped or never started."""
    page.section("Runs")
    for part in study.parts:
        runs = [run for group in part.groups().values() for run in group]
        metrics = [describe(name) for name in part.primary_metrics]
        fields: list[tuple[Column, Sequence[object]]] = [
            (Column("Arm"), [swatch(palette.of(run.arm), run.label) for run in runs]),
            (Column("Seed", "right"), [count(run.seed) for run in runs]),
            (Column("Status"), [badge(run.status, run.status) for run in runs]),
        ]
        for m in metrics:
            values = column(run.metrics.get(m.name) for run in runs)
            fields.append((Column(m.axis, "right", m.definition), values))
        fields += [
            (Column("Time", "right"), [duration(run.seconds) for run in runs]),
            (Column("Config hash"), [_hash(run) for run in runs]),
        ]
        remarks = [_remarks(run) for run in runs]
        if any(remarks):
            fields.append((Column("Remarks"), remarks))
        if runs:
            rows = list(zip(*(cells for _, cells in fields), strict=True))
            page.table([title for title, _ in fields], rows, part.title)


def _hash(run: RunRecord) -> Html:
    return join(Html("<code>"), run.config_hash or MISSING, Html("</code>"))


def _remarks(run: RunRecord) -> str:
    events = [f"{e.get('what')} at step {e.get('step')}" for e in run.events[:3]]
    more = [f"{len(run.events) - 3} more events"] if len(run.events) > 3 else []
    return "; ".join([*filter(None, [run.error]), *run.problems, *events, *more])


def add_definitions(page: Page, study: Study) -> None:
    """Add every metric that the report shows, with its definition."""
    names = dict.fromkeys(name for part in study.parts for name in part.metrics)
    seen = {key for run in study.runs if run.analysis for key in DRAWN}
    described = [describe(name) for name in [*names, *sorted(seen - set(names))]]
    if not described:
        return
    page.section("Metrics")
    page.definitions(
        (
            join(m.axis, Html(" <code>"), m.name, Html("</code>")),
            m.definition + (f" {m.better.capitalize()} is better." if m.better else ""),
        )
        for m in described
    )


def add_repeat(page: Page, study: Study) -> None:
    """Add command, versions and resolved configs."""
    page.section("How to repeat this")
    results = study.results
    if results.command:
        page.code(results.command)
    versions = results.versions
    if results.gatelm_version:
        versions = {"gatelm": results.gatelm_version, **versions}
    if versions:
        page.text("Computed with: " + ", ".join(f"{k} {v}" for k, v in versions.items()) + ".")
    page.text(
        "A run's hash is the hash of its resolved config; the numbers behind every table and chart "
        "are in results.json, results.csv and the run folders."
    )
    for part in study.parts:
        _add_configs(page, part)


def _add_configs(page: Page, part: StudyPart) -> None:
    base, overrides = part.spec.base_config, part.spec.arm_overrides
    if base:
        page.details(f"{part.title}: base config", _yaml(base))
    if overrides:
        page.details(f"{part.title}: what each arm changes", _yaml(overrides))
    run = _first(part.runs, part.baseline)
    if run:
        title = f"{part.title}: resolved config of {run.label}, seed {run.seed}"
        page.details(f"{title} ({run.config_hash})", run.config_text)


def _first(runs: Iterable[RunRecord], arm: str) -> RunRecord | None:
    kept = [run for run in runs if run.config_text]
    return next((run for run in kept if run.arm == arm), kept[0] if kept else None)


def _yaml(tree: object) -> str:
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=96)
