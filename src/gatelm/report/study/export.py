"""The export of a study's outcome as a small folder: README.md, a few SVGs, results.csv.

The same results give the same bytes. A section `## Reading`, written by hand, stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gatelm.analysis.metrics.registry import split_mark
from gatelm.io.files import write_text
from gatelm.io.folders import refuse_foreign
from gatelm.report import markdown
from gatelm.report.charts import figures, intervals
from gatelm.report.charts.theme import Palette
from gatelm.report.load import FINISHED, Study, StudyPart, read_study
from gatelm.report.metrics import describe
from gatelm.report.page import Figure, slug
from gatelm.report.study.causal import CAUSAL_METRICS, HOW, causal_table
from gatelm.report.study.claims import claims_markdown
from gatelm.report.study.longer import longer_figures
from gatelm.report.study.outcome import outcome_figures
from gatelm.report.study.sentences import common_places, method, status, unfinished
from gatelm.study.claims.check import check
from gatelm.study.claims.registry import load_registry
from gatelm.study.planning.derived import uniform_name
from gatelm.study.results.collect import to_csv
from gatelm.study.results.numbers import (
    MISSING,
    common_decimals,
    count,
    decimals_for,
    duration,
    fixed,
    half_width,
    interval,
    is_number,
    p_text,
    percent,
    rounded,
    short,
)
from gatelm.study.results.schema import ComparisonEntry, StudyResults, SummaryEntry

MOST_SVG_BYTES = 60_000
MOST_FIGURES = 4
"""Largest number of figures of one part."""

READING = "Reading"
NOT_READ = f"## {READING}\n\nNot written yet."


def export_study(root: Path, folder: Path) -> list[Path]:
    """Write `folder`/README.md, its figures and results.csv, and return the paths.

    Figures of an earlier export that this one does not draw are removed.

    Raises:
        ConfigError: there are no readable results in `root`, or `folder` is no folder of ours.
        OSError: the folder cannot be written.
    """
    study = read_study(root)
    readme = folder / "README.md"
    table = folder / "results.csv"
    refuse_foreign(folder, "an export", table.name, (readme.name, "*"))
    before = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    palette = Palette.of_arms(
        (arm for part in study.parts for arm in part.arms),
        (part.baseline for part in study.parts if part.baseline),
    )
    drawn = {part.name: list(_drawings(part, palette)) for part in study.parts}
    reading = markdown.section(before, READING) or NOT_READ
    text = "\n\n".join(block for block in _blocks(study, reading, drawn) if block) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    written = [readme, table]
    write_text(table, to_csv(study.results))
    write_text(readme, text)
    for name, svg in (drawing for drawings in drawn.values() for _, *drawing in drawings):
        written.append(folder / f"{name}.svg")
        write_text(written[-1], svg)
    for old in re.findall(r"\]\(([\w.+-]+\.svg)\)", before):
        if folder / old not in written:
            (folder / old).unlink(missing_ok=True)
    return written


def _drawings(part: StudyPart, palette: Palette) -> Iterator[tuple[Figure, str, str]]:
    """Draw the primary metrics' figures that are small enough; returns names and SVGs."""
    found = 0
    by_length = longer_figures(part, palette)
    for figure in [*by_length, *_along_axis(part, palette), *outcome_figures(part, palette)]:
        named = replace(figure, name=slug(figure.name), context=part.title)
        svg = figures.svg(named)
        if len(svg.encode()) < MOST_SVG_BYTES:
            yield named, named.name, svg
            found += 1
        if found == MOST_FIGURES:
            return


def _along_axis(part: StudyPart, palette: Palette) -> list[Figure]:
    """Draw each primary metric's means along the only axis of numbers of a part."""
    paths = list(dict.fromkeys(path for run in part.runs for path in run.axes))
    if len(paths) != 1 or not all(is_number(run.axes.get(paths[0])) for run in part.runs):
        return []
    (path,) = paths
    out = []
    for name in part.primary_metrics:
        metric = describe(name)
        rows = [
            {
                "arm": s.arm,
                "x": s.axes[path],
                "n": s.n,
                **{key: rounded(getattr(s, key), 6) for key in ("mean", "low", "high")},
            }
            for s in part.summaries_of(name)
            # a metric over the whole axis, such as learning-rate sensitivity, has no place on it
            if path in s.axes
        ]
        if rows:
            last = path.rpartition(".")[2]
            chart = intervals.along_axis(
                rows, palette, title=f"{metric.label} by {last}", x_title=path, y_title=metric.axis
            )
            out.append(Figure(f"{part.name}-{name}-by-{last}", chart, "Bars: intervals."))
    return out


def _blocks(
    study: Study, reading: str, drawn: Mapping[str, Sequence[tuple[Figure, str, str]]]
) -> Iterator[str]:
    yield f"# {markdown.cell(study.title)}"
    yield markdown.plain(f"{study.results.summary.strip()} {status(study)}.".strip())
    yield reading
    for part in study.parts:
        yield f"## {markdown.cell(part.title)}"
        figures = [(markdown.plain(f.title), name) for f, name, _ in drawn[part.name]]
        yield from _part(part, [f"![{title}]({name}.svg)" for title, name in figures])
    findings = check(load_registry(), [study.results])
    if findings:
        yield "## Published statements"
        yield claims_markdown(findings)
    yield from _record(study)


def _part(part: StudyPart, pictures: Sequence[str]) -> Iterator[str]:
    """Write a part: the question, pictures and primary metrics, and other metrics folded."""
    yield markdown.plain(part.spec.question)
    yield "\n".join(f"- Published: {markdown.cell(claim)}" for claim in part.spec.claims)
    yield markdown.plain(part.spec.note)
    yield "\n".join(f"- {markdown.cell(line)}" for line in unfinished(part))
    yield from pictures
    yield _arms(part)
    yield _over_axis(part)
    compared = {name: _comparisons(part, name) for name in part.metrics if not _causal(name)}
    yield from (table for name, table in compared.items() if name in part.primary_metrics)
    others = [table for name, table in compared.items() if name not in part.primary_metrics]
    yield markdown.folded("The other measures against the baseline", others)
    causal = causal_table(part)
    if causal is not None:
        yield HOW
        rows = [[name, *row] for (_, name), row in zip(causal.arms, causal.rows, strict=True)]
        yield markdown.table(["arm", *causal.head], rows, ["left"])


def _causal(metric: str) -> bool:
    """Whether a metric belongs in the table of forced gates."""
    return split_mark(metric)[0] in CAUSAL_METRICS


def _arms(part: StudyPart) -> str:
    """Write mean and interval of every metric; arms are the rows unless there are more metrics."""
    groups = part.groups()
    over_axis = _labels_over_axis(part)
    metrics = [name for name in part.metrics if not _causal(name) and name not in over_axis]
    confidence = percent(part.spec.confidence)
    caption = f"Means over finished seeds, in brackets the {confidence} interval of the mean."
    caption += "".join(_uniform(part, metric) for metric in metrics)
    seeds = [
        f"{sum(run.status == FINISHED for run in runs)} of {len(runs)}" for runs in groups.values()
    ]
    lines: list[Sequence[str]] = [
        ["arm", *groups],
        ["seeds", *seeds],
        *([describe(metric).axis, *_means(part, metric, list(groups))] for metric in metrics),
        ["parameters", *(count(runs[0].parameters) for runs in groups.values())],
        ["in gates", *(count(runs[0].gate_parameters) for runs in groups.values())],
    ]
    if len(metrics) <= len(groups):
        lines = list(zip(*lines, strict=True))
    return f"{caption}\n\n{markdown.table(lines[0], lines[1:], ['left'])}" if groups else ""


def _over_axis(part: StudyPart) -> str:
    """Write mean and interval of metrics that are one number over an axis, a row per arm."""
    over_axis = _labels_over_axis(part)
    labels = list(dict.fromkeys(name for names in over_axis.values() for name in names))
    columns = [_means(part, metric, labels) for metric in over_axis]
    rows = [[name, *(column[i] for column in columns)] for i, name in enumerate(labels)]
    head = ["arm", *(describe(metric).axis for metric in over_axis)]
    return markdown.table(head, rows, ["left"]) if rows else ""


def _labels_over_axis(part: StudyPart) -> dict[str, list[str]]:
    """Return metrics whose summaries stand for several settings, with their rows."""
    settings = part.groups().keys()
    out: dict[str, list[str]] = {}
    for metric in part.metrics:
        labels = [s.label for s in part.summaries if s.metric == metric]
        if labels and not settings & set(labels):
            out[metric] = labels
    return out


def _uniform(part: StudyPart, metric: str) -> str:
    """Write the uniform value beside which a first-token share must be read."""
    name = uniform_name(metric)
    if name is None:
        return ""
    values = {short(run.metrics.get(name)) for run in part.finished()} - {MISSING}
    label = describe(metric).label
    return f" {label} under uniform attention: {' / '.join(sorted(values))}." if values else ""


def _means(part: StudyPart, metric: str, labels: Sequence[str]) -> list[str]:
    found = {s.label: s for s in part.summaries_of(metric)}
    places = common_decimals(
        decimals_for(half_width(s.low, s.high), s.mean, 4)
        for s in found.values()
        if s.mean is not None
    )
    return [_mean(found.get(name), places) for name in labels]


def _mean(summary: SummaryEntry | None, places: int) -> str:
    if summary is None:
        return MISSING
    ends = interval(summary.low, summary.high, places)
    return fixed(summary.mean, places) + (f" [{ends}]" if ends != MISSING else "")


def _comparisons(part: StudyPart, name: str) -> str:
    """Write each arm minus the baseline in one metric, with the detectable difference of nulls."""
    compared = part.comparisons_of(name)
    places = common_places(compared)
    rows = [
        [
            c.label,
            fixed(c.difference, places, sign=True),
            interval(c.low, c.high, places, sign=True),
            str(c.n),
            MISSING if c.p_corrected is None else p_text(c.p_corrected),
            f"{c.verdict}{_diverged(c)}",
            _detectable(c),
        ]
        for c in compared
    ]
    if not rows:
        return ""
    metric = describe(name)
    better = f" ({metric.better} is better)" if metric.better else ""
    head = ["arm", "difference", "interval", "n", "p, corrected", "verdict", "detectable"]
    title = f"**{metric.axis}**{better}, minus `{part.baseline}`:"
    return f"{title}\n\n{markdown.table(head, rows, ['left'])}"


def _detectable(comparison: ComparisonEntry) -> str:
    size = comparison.minimum_detectable
    if comparison.verdict != "no difference" or size is None:
        return ""
    return short(size, 2) if size else "equal in every seed"


def _diverged(c: ComparisonEntry) -> str:
    sides = (("of the arm", c.diverged), ("of the baseline", c.baseline_diverged))
    lost = [f"{number} {who}" for who, number in sides if number]
    return f" (diverged: {', '.join(lost)})" if lost else ""


def _record(study: Study) -> Iterator[str]:
    """Write how to read the tables, what was measured, and how to repeat the study."""
    results = study.results
    yield "## How to read the tables"
    yield method([c for part in study.parts for c in part.comparisons])
    yield (
        "*detectable*: the true difference that four in five studies with this scatter would have "
        "found. *n*: seeds that finished in both arms, paired. A run that diverged is counted as "
        "diverged and never dropped in silence."
    )
    names = dict.fromkeys(m for part in study.parts for m in part.metrics)
    definitions = "\n".join(
        f"- **{metric.label}** (`{name}`): {metric.definition}"
        for name, metric in ((name, describe(name)) for name in names)
        if not _causal(name)
    )
    yield markdown.folded("What each measure is", [definitions])
    yield "## Run it again"
    yield markdown.code("\n".join(commands(results)))
    total = duration(sum(float(run.seconds or 0) for run in study.runs))
    facts = [
        f"size {results.size}" if results.size else "the size as written",
        f"{total} of training over all runs",
        ", ".join(f"{name} {text}" for name, text in results.versions.items()),
    ]
    yield f"Measured with {'; '.join(fact for fact in facts if fact)}."


def commands(results: StudyResults) -> list[str]:
    """Write the commands that ran the study and wrote the export, without folders."""
    folder = f"runs/{results.study or 'NAME'}"
    return [
        results.typed_command(),
        f"gatelm study claims {folder}",
        f"gatelm study export {folder} DEST",
    ]
