"""One HTML file from sections, tables, charts and notes; it opens offline.

Text is escaped wherever it comes from; only `Html` values, which this package makes itself, are
taken as markup. The page's content security policy lets nothing load from the network.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from typing import Any, Literal

import altair as alt

from gatelm.report.charts.axes import Chart
from gatelm.report.charts.theme import CONFIG, FONT
from gatelm.report.charts.vega import javascript

Align = Literal["left", "right"]


class Html(str):
    """Markup that is taken as it is."""


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
    """Where it stands: the subtitle in its files. The page fills it with its section titles."""

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


def escape(text: object) -> str:
    """Text for HTML; `Html` passes as it is."""
    return str(text) if isinstance(text, Html) else html.escape(str(text))


def swatch(color: str, text: str) -> Html:
    """A text with its colour beside it."""
    return Html(
        f'<span class="arm"><i style="background:{escape(color)}"></i>{escape(text)}</span>'
    )


def swatched(color: str, sentence: str) -> Html:
    """A sentence about an arm, led by the arm's colour; unlike `swatch` it may wrap."""
    return Html(
        f'<span><i class="dot" style="background:{escape(color)}"></i>{escape(sentence)}</span>'
    )


def badge(kind: str, text: str) -> Html:
    """A small label; `kind` is a CSS class."""
    return Html(f'<span class="badge {slug(kind)}">{escape(text)}</span>')


def join(*pieces: object) -> Html:
    """Pieces one after the other, each escaped unless it is `Html`."""
    return Html("".join(escape(piece) for piece in pieces))


def slug(text: str) -> str:
    """Lower-case letters, digits and dashes, for anchors and file names."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


class Page:
    """A report under construction; `html()` gives the file, `figures` the charts on it."""

    def __init__(self, title: str, lead: str = "", footer: str = "") -> None:
        self.title = title
        self.footer = footer
        self.figures: list[Figure] = []
        self._body: list[str] = []
        self._nav: list[tuple[str, str]] = []
        self._anchors: set[str] = set()
        self._context: list[str] = []
        self._groups = 0
        if lead:
            self._add("p", lead, "lead")

    def section(self, title: str, *, level: int = 2) -> None:
        """Start a section; level 2 titles also stand in the table of contents."""
        anchor = self._unique(slug(title))
        if level == 2:
            self._nav.append((anchor, title))
        self._context = [*self._context[: level - 2], title]
        self._body.append(f'<h{level} id="{anchor}">{escape(title)}</h{level}>')

    def text(self, *paragraphs: str) -> None:
        for paragraph in paragraphs:
            if paragraph:
                self._add("p", paragraph)

    def note(self, text: str, kind: Literal["note", "warning", "claim"] = "note") -> None:
        """A paragraph set apart: a remark, something missing, or a published claim."""
        self._add("p", text, f"note {kind}")

    def items(self, entries: Iterable[str], css: str = "") -> None:
        body = "".join(f"<li>{escape(entry)}</li>" for entry in entries)
        if body:
            self._body.append(f'<ul class="{escape(css)}">{body}</ul>')

    def table(
        self, columns: Sequence[Column], rows: Sequence[Sequence[object]], caption: str = ""
    ) -> None:
        """A table that scrolls inside its own box when the page is narrow."""
        head = "".join(
            f'<th scope="col" class="{c.align}"'
            + (f' title="{escape(c.hint)}"' if c.hint else "")
            + f">{escape(c.title)}</th>"
            for c in columns
        )
        body = "".join(
            "<tr>"
            + "".join(
                f'<td class="{c.align}">{escape(cell)}</td>'
                for c, cell in zip(columns, row, strict=True)
            )
            + "</tr>"
            for row in rows
        )
        title = f"<caption>{escape(caption)}</caption>" if caption else ""
        self._body.append(
            f'<div class="scroll" tabindex="0"><table>{title}<thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def chart(self, figure: Figure) -> None:
        self.charts([figure], min_width=2000)

    def charts(
        self, figures: Sequence[Figure], controls: Sequence[Control] = (), min_width: int = 400
    ) -> None:
        """Charts side by side, each at least `min_width` pixels wide where the page allows it."""
        if not figures:
            return
        self._groups += 1
        group = f"group-{self._groups}"
        cells = "".join(self._figure(figure) for figure in figures)
        self._body.append(
            f'<div class="group" id="{group}">{_controls(controls)}'
            f'<div class="grid" style="--min:{min_width}px">{cells}</div></div>'
        )

    def details(self, summary: str, *blocks: str, code: bool = True) -> None:
        """A collapsed block of preformatted text."""
        tag = "pre" if code else "p"
        body = "".join(f"<{tag}>{escape(block)}</{tag}>" for block in blocks)
        self._body.append(f"<details><summary>{escape(summary)}</summary>{body}</details>")

    def code(self, text: str) -> None:
        self._add("pre", text)

    def definitions(self, entries: Iterable[tuple[str, str]]) -> None:
        body = "".join(f"<dt>{escape(term)}</dt><dd>{escape(what)}</dd>" for term, what in entries)
        if body:
            self._body.append(f"<dl>{body}</dl>")

    def html(self) -> str:
        """The whole file."""
        specs = {figure.name: figure.spec for figure in self.figures}
        nav = "".join(f'<a href="#{a}">{escape(t)}</a>' for a, t in self._nav)
        scripts = ""
        if specs:
            scripts = (
                f"<script>{javascript()}</script>\n"
                f'<script type="application/json" id="specs">{_json(specs)}</script>\n'
                f'<script type="application/json" id="config">{_json(CONFIG)}</script>\n'
                f"<script>{_asset('page.js')}</script>"
            )
        pieces = {
            "title": escape(self.title),
            "style": _asset("page.css").replace("FONT", FONT),
            "nav": f'<nav aria-label="Contents">{nav}</nav>' if len(self._nav) > 1 else "",
            "body": "\n".join(self._body),
            "footer": escape(self.footer),
            "scripts": scripts,
        }
        return re.sub(r"{{(\w+)}}", lambda m: pieces[m[1]], _asset("page.html"))

    def _figure(self, figure: Figure) -> str:
        name = self._unique(slug(figure.name))
        self.figures.append(replace(figure, name=name, context=" · ".join(self._context)))
        caption = f"<figcaption>{escape(figure.caption)}</figcaption>" if figure.caption else ""
        title = figure.title
        return (
            f'<figure><div class="title">{escape(title)}</div><div class="vis" role="img" '
            f'aria-label="{escape(title)}" data-chart="{name}"></div>{caption}</figure>'
        )

    def _unique(self, name: str) -> str:
        anchor, number = name, 1
        while anchor in self._anchors:
            number += 1
            anchor = f"{name}-{number}"
        self._anchors.add(anchor)
        return anchor

    def _add(self, tag: str, text: str, css: str = "") -> None:
        attribute = f' class="{css}"' if css else ""
        self._body.append(f"<{tag}{attribute}>{escape(text)}</{tag}>")


def _controls(controls: Sequence[Control]) -> str:
    out = []
    for control in controls:
        options = "".join(
            f'<option value="{escape(json.dumps(value))}">{escape(text)}</option>'
            for value, text in control.options
        )
        out.append(
            f"<label>{escape(control.label)} "
            f'<select data-param="{escape(control.param)}">{options}</select></label>'
        )
    return f'<div class="controls">{"".join(out)}</div>' if out else ""


def _json(value: object) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _asset(name: str) -> str:
    return files("gatelm.report").joinpath("assets", name).read_text(encoding="utf-8")
