import json
import re

import pytest

from gatelm.report.charts import profiles
from gatelm.report.charts.theme import Palette
from gatelm.report.charts.vega import javascript
from gatelm.report.page import Column, Control, Figure, Html, Page, join, swatch

EVIL = '</script><script>alert("1")</script><img src=x onerror=alert(1)>'


def figure(name: str, label: str = "none") -> Figure:
    rows = [{"arm": label, "label": label, "seed": 0, "x": x, "y": x} for x in range(3)]
    chart = profiles.curves(rows, Palette.of_arms([label]), title=label, x_title="s", y_title="y")
    return Figure(name, chart)


def own(html: str) -> str:
    """The page without the libraries, which hold markup of their own as text."""
    assert html.count(javascript()) == 1
    return html.replace(javascript(), "")


def full_page(text: str) -> Page:
    page = Page(text, text, text)
    page.section(text)
    page.section(text, level=3)
    page.text(text)
    page.note(text, "claim")
    page.items([text])
    page.table([Column(text, hint=text)], [[text], [swatch("#000000", text)]], text)
    page.charts([figure(text, text)], [Control("layer", text, [(text, text)])])
    page.details(text, text)
    page.definitions([(text, text)])
    page.code(text)
    return page


def test_everything_given_is_escaped() -> None:
    html = own(full_page(EVIL).html())
    assert EVIL not in html
    assert "<img" not in html
    assert html.count("<script") == 4  # libraries, specs, config, page.js
    safe = own(full_page("plain").html())
    assert re.sub("plain", "", safe).count("<") == re.sub("&lt;|plain", "", html).count("<")


def test_specs_are_json_again() -> None:
    html = full_page(EVIL).html()
    match = re.search(r'<script type="application/json" id="specs">(.*?)</script>', html, re.S)
    assert match
    (spec,) = json.loads(match[1]).values()
    assert EVIL in json.dumps(spec, ensure_ascii=False).replace('\\"', '"')
    assert "title" not in spec  # the page sets it as text


def test_libraries_are_inlined_once_and_nothing_is_loaded() -> None:
    page = Page("t")
    page.charts([figure("a"), figure("b"), figure("a")])
    assert len(page.html()) < 1_200_000
    html = own(page.html())
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", html)
    assert "default-src 'none'" in html
    assert [f.name for f in page.figures] == ["a", "b", "a-2"]


def test_a_page_without_charts_needs_no_script() -> None:
    page = Page("t", "lead")
    assert "<script" not in page.html()


def test_a_figure_knows_the_sections_it_stands_in() -> None:
    page = Page("t")
    page.section("Evidence: text")
    page.section("Gate scores", level=3)
    page.chart(figure("a"))
    page.section("Runs")
    page.chart(figure("b"))
    assert [f.context for f in page.figures] == ["Evidence: text · Gate scores", "Runs"]


def test_a_ragged_table_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        Page("t").table([Column("a"), Column("b")], [["1"]])


def test_join_escapes_all_but_markup() -> None:
    assert join(Html("<b>"), "<b>", Html("</b>")) == "<b>&lt;b&gt;</b>"
