"""One HTML file from sections, tables, charts and notes; it opens offline.

The template escapes text wherever it comes from; only `Html` values, which this package makes
itself, are taken as markup. The page's content security policy lets nothing load from the network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import altair as alt
from jinja2 import Environment, FileSystemLoader, Template
from markupsafe import Markup as Html

from gatelm.report.charts.axes import Chart
from gatelm.report.charts.theme import CONFIG, FONT
from gatelm.report.charts.vega import javascript

Align = Literal["left", "right"]


@dataclass(frozen=True)
class Column:
    """A table's column: its heading, alignment, and a longer text shown on hover."""

    title: str
    align: Align = "left"
    hint: str = ""


@dataclass(frozen=True)
class Figure:
    """A chart on the page; `name` is unique and names its files."""

    name: str
    chart: Chart
    caption: str = ""
    width: int = 560
    """Width of the chart in its files, in pixels; on the page it takes what there is."""
    context: str = ""
    """Titles of the sections around the figure, set by the page: the subtitle in its files."""

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The Vega-Lite spec without its title, which the page sets as text that can wrap."""
        spec = self.chart.to_dict()
        spec.pop("title", None)
        return spec

    @property
    def title(self) -> str:
        """The chart's title as one line."""
        title = self.chart.title
        if isinstance(title, alt.TitleParams):
            title = title.text
        return title if isinstance(title, str) else "chart"


@dataclass(frozen=True)
class Control:
    """A select that sets one parameter of every chart in its group; options are (value, text)."""

    param: str
    label: str
    options: Sequence[tuple[Any, str]]


def swatch(color: str, text: str) -> Html:
    """Return a text with its colour beside it."""
    return Html('<span class="arm"><i style="background:{}"></i>{}</span>').format(color, text)


def swatched(color: str, sentence: str) -> Html:
    """Return a sentence with its arm's colour in front; unlike `swatch` it may wrap."""
    html = Html('<span><i class="dot" style="background:{}"></i>{}</span>')
    return html.format(color, sentence)


def badge(kind: str, text: str) -> Html:
    """Return a small label; `kind` is a CSS class."""
    return Html('<span class="badge {}">{}</span>').format(slug(kind), text)


def join(*pieces: object) -> Html:
    """Concatenate pieces, each escaped unless it is `Html`."""
    return Html("").join(pieces)  # type: ignore[arg-type]


def slug(text: str) -> str:
    """Turn a text into lower-case letters, digits and dashes, for anchors and file names."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


class Page:
    """A report under construction; `html()` gives the file, `figures` the charts on it."""

    def __init__(self, title: str, lead: str = "", footer: str = "") -> None:
        self.title = title
        self.footer = footer
        self.figures: list[Figure] = []
        self._blocks: list[dict[str, Any]] = []
        self._anchors: set[str] = set()
        self._context: list[str] = []
        self._groups = 0
        if lead:
            self._add("text", text=lead, css="lead")

    def section(self, title: str, *, level: int = 2) -> None:
        """Start a section; level 2 titles also stand in the table of contents."""
        self._context = [*self._context[: level - 2], title]
        self._add("section", title=title, level=level, anchor=self._unique(slug(title)))

    def text(self, *paragraphs: str) -> None:
        """Add paragraphs; empty ones are left out."""
        for paragraph in filter(None, paragraphs):
            self._add("text", text=paragraph)

    def note(self, text: str, kind: Literal["note", "warning", "claim"] = "note") -> None:
        """Add a separate paragraph: a remark, something missing, or a published claim."""
        self._add("text", text=text, css=f"note {kind}")

    def items(self, entries: Iterable[str], css: str = "") -> None:
        """Add a list, if there are entries."""
        kept = list(entries)
        if kept:
            self._add("items", entries=kept, css=css)

    def table(
        self, columns: Sequence[Column], rows: Sequence[Sequence[object]], caption: str = ""
    ) -> None:
        """Add a table that scrolls inside its own box when the page is narrow."""
        cells = [list(zip(columns, row, strict=True)) for row in rows]
        self._add("table", columns=columns, rows=cells, caption=caption)

    def chart(self, *figures: Figure) -> None:
        """Add charts as wide as the page, one below the other."""
        self.charts(figures, min_width=2000)

    def charts(
        self, figures: Sequence[Figure], controls: Sequence[Control] = (), min_width: int = 400
    ) -> None:
        """Add charts side by side, each at least `min_width` pixels wide if the page allows it."""
        if not figures:
            return
        self._groups += 1
        context = " · ".join(self._context)
        named = [replace(f, name=self._unique(slug(f.name)), context=context) for f in figures]
        self.figures += named
        anchor = f"group-{self._groups}"
        self._add("charts", figures=named, controls=controls, min_width=min_width, anchor=anchor)

    def details(self, summary: str, *blocks: str, code: bool = True) -> None:
        """Add a collapsed block of preformatted text, or of paragraphs."""
        self._add("details", summary=summary, blocks=blocks, tag="pre" if code else "p")

    def code(self, text: str) -> None:
        """Add preformatted text."""
        self._add("code", text=text)

    def definitions(self, entries: Iterable[tuple[str, str]]) -> None:
        """Add terms with their meanings, if there are any."""
        kept = list(entries)
        if kept:
            self._add("definitions", entries=kept)

    def html(self) -> str:
        """Return the text of the whole HTML file."""
        specs = {figure.name: figure.spec for figure in self.figures}
        sections = [block for block in self._blocks if block["kind"] == "section"]
        return _template().render(
            title=self.title,
            footer=self.footer,
            contents=[section for section in sections if section["level"] == 2],
            blocks=self._blocks,
            font=FONT,
            specs=_json(specs) if specs else "",
            config=_json(CONFIG),
            libraries=Html(javascript()) if specs else "",
            json=json.dumps,
        )

    def _unique(self, name: str) -> str:
        anchor, number = name, 1
        while anchor in self._anchors:
            number += 1
            anchor = f"{name}-{number}"
        self._anchors.add(anchor)
        return anchor

    def _add(self, kind: str, **values: object) -> None:
        self._blocks.append({"kind": kind, **values})


@cache
def _template() -> Template:
    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    environment = Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html.jinja")


def _json(value: object) -> Html:
    """Return JSON that cannot end the script element around it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    safe = text.replace("<", "\\u003c").replace("\u2028", "\\u2028")
    return Html(safe.replace("\u2029", "\\u2029"))
