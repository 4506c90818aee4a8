"""The report in a real browser: headless Chromium, from file://, without a network."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatelm.report.load import read_study
from gatelm.report.study.build import study_page

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("width", [1280, 400])
def test_the_full_report_is_drawn_and_fits(
    built_report: Path, browser: Any, tmp_path: Path, width: int
) -> None:
    seen = browser.look(built_report.read_text(), tmp_path, width)
    browser.check(seen, width)
    assert seen["charts"] == "40/40"
    # A map of T tokens has T(T+1)/2 cells, and T fewer without its first column.
    assert set(seen["shown"]) == {40 * 41 // 2, 48 * 49 // 2}
    assert set(seen["hidden"]) == {40 * 39 // 2, 48 * 47 // 2}


def test_hostile_text_is_only_text(
    study_writer: Callable[..., Path], browser: Any, tmp_path: Path
) -> None:
    evil = '<img src="http://127.0.0.1/x" onerror=alert(1)></script>"\\n'

    def spoil(results: dict[str, Any]) -> None:
        results["title"] = evil
        results["parts"]["text"]["arms"] = ["none", evil]
        for key in ("runs", "summaries", "comparisons"):
            for item in results[key]:
                item["arm"] = "none" if item["arm"] == "none" else evil
        results["runs"][1]["status"] = "diverged"

    root = study_writer("text", ["none", "sdpa-head"], [0, 1], edit=spoil)
    for path in root.glob("runs/*/*/*/analysis.json"):
        analysis = json.loads(path.read_text())
        analysis["attention_maps"]["tokens"][1] = evil
        path.write_text(json.dumps(analysis))
    browser.check(browser.look(study_page(read_study(root)).html(), tmp_path, 400), 400)
