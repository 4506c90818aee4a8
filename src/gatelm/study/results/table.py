"""The verdicts of a study as tables for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gatelm.analysis.metrics.registry import describe
from gatelm.study.planning.derived import uniform_name
from gatelm.study.planning.plan import setting_label
from gatelm.study.results.numbers import bracketed, decimals, mean
from gatelm.study.results.schema import ComparisonEntry, StudyResults, SummaryEntry
from gatelm.study.results.statistics import POWER

_STYLES = {
    "lower": "bold cyan",
    "higher": "bold magenta",
    "no difference": "dim",
    "too few seeds": "yellow",
    "diverged": "red",
}

_CORRECTED = (
    "Verdicts use p values corrected (Holm) for all comparisons of a metric in a part; intervals "
    "are of one comparison alone."
)
_DETECTABLE = (
    f"detectable: the true difference that {POWER:.0%} of studies with this scatter would have "
    "found."
)


def verdicts(results: StudyResults) -> RenderableType:
    """Make tables of each part's primary metrics, every arm against the baseline."""
    out: list[RenderableType] = []
    for name, part in results.parts.items():
        out.append(Text(f"{name}: {part.question or part.title}", style="bold"))
        out += [Text(f"published: {claim}") for claim in part.claims]
        for metric in part.primary_metrics:
            out += [Text(""), _heading(results, name, metric), _metric_table(results, name, metric)]
        if part.note:
            out += [Text(""), Text(part.note, style="dim")]
        out.append(Text(""))
    return Group(*out, *_footnotes(results))


def _heading(results: StudyResults, part: str, metric: str) -> Text:
    """Write the metric's label, the better direction, and the uniform value of shares."""
    described = describe(metric)
    notes = [f"{described.better} is better"] if described.better else []
    uniform = uniform_name(metric)
    if uniform is not None:
        share = mean(run.metrics.get(uniform) for run in results.runs if run.part == part)
        if share is not None:
            notes.append(f"uniform attention would give {share:.3f}")
    text = f"{metric}: {described.label}"
    return Text(text + (f" ({'; '.join(notes)})" if notes else ""), style="italic")


def _metric_table(results: StudyResults, name: str, metric: str) -> Table:
    part = results.parts[name]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("arm", overflow="fold", min_width=8)
    table.add_column("mean", justify="right", no_wrap=True)
    table.add_column(Text(f"minus {part.baseline}"), no_wrap=True)
    table.add_column(Text(f"[{100 * part.confidence:g} %]"), no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("detectable", justify="right", no_wrap=True)
    compared = {
        (c.arm, str(c.axes)): c
        for c in results.comparisons
        if c.part == name and c.metric == metric
    }
    for row in results.summaries:
        if row.part == name and row.metric == metric:
            label = Text(setting_label(row.arm, row.axes))
            comparison = compared.get((row.arm, str(row.axes)))
            table.add_row(label, _mean(row), *_difference(comparison))
    return table


def _mean(row: SummaryEntry) -> Text:
    value = "-" if row.mean is None else bracketed(row.mean, None, None)[0]
    return Text(value + (f" ({row.diverged} diverged)" if row.diverged else ""))


def _difference(comparison: ComparisonEntry | None) -> tuple[Text, ...]:
    """Make a comparison's cells: difference, interval, seeds, verdict, detectable difference."""
    if comparison is None:
        return (Text(""),) * 5
    c = comparison
    difference = interval = detectable = ""
    if c.difference is not None:
        difference, interval = bracketed(c.difference, c.low, c.high, sign=True)
    size = c.minimum_detectable
    if c.verdict == "no difference" and size is not None:
        detectable = f"{size:.{decimals(size)}f}" if size else "equal"
    verdict = Text(c.verdict, style=_STYLES[c.verdict])
    return Text(difference), Text(interval), Text(str(c.n)), verdict, Text(detectable)


def _footnotes(results: StudyResults) -> list[RenderableType]:
    runs = results.runs
    out: list[RenderableType] = [Text("n: seeds in both arms, paired.", style="dim")]
    for status, style in (("failed", "red"), ("diverged", "yellow"), ("unfinished", "yellow")):
        hit = [r for r in runs if r.status == status]
        if hit:
            names = ", ".join(
                f"{r.part}/{setting_label(r.arm, r.axes)}/seed {r.seed}" for r in hit[:6]
            )
            more = f" and {len(hit) - 6} more" if len(hit) > 6 else ""
            out.append(Text(f"{status}: {len(hit)} of {len(runs)} runs ({names}{more})", style))
    if any(c.family_size > 1 for c in results.comparisons):
        out.append(Text(_CORRECTED, style="dim"))
    if any(c.verdict == "no difference" for c in results.comparisons):
        out.append(Text(_DETECTABLE, style="dim"))
    return out
