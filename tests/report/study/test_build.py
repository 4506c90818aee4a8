import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatelm.report.charts.theme import ARM_COLORS
from gatelm.report.charts.vega import javascript
from gatelm.report.load import read_study
from gatelm.report.study.build import build_report, study_page

Writer = Callable[..., Path]
TAG = re.compile(r"<[^>]+>")


def html_of(root: Path) -> str:
    """The report without the libraries, which hold markup of their own as text."""
    return study_page(read_study(root)).html().replace(javascript(), "")


def text_of(html: str) -> str:
    return " ".join(TAG.sub(" ", html[html.index("<body") : html.rindex("<footer")]).split())


@pytest.mark.slow
def test_the_full_report(built_report: Path) -> None:
    html = built_report.read_text()
    text = text_of(html)
    for title in ("Verdict", "Evidence: mechanism", "Evidence: text", "Runs", "Metrics"):
        assert f">{title}</h2>" in html
    assert "2 parts and 21 runs, all finished" in text
    assert "Published claim. A sparse, input-dependent gate" in text
    assert "sdpa-head is better (lower) than none." in text
    assert "non-sparse: no difference from none." in text
    assert "Mean negative log-likelihood of the next token" in text
    assert "gatelm study run demo --set parts.text.base.train.total_steps=600" in text
    assert "torch 2.13.0" in text
    assert f'<i style="background:{ARM_COLORS[0]}"></i>sdpa-element' in html
    results = json.loads((built_report.parent / "results.json").read_text())
    assert all(run["config_hash"] in text for run in results["runs"])
    assert len(html) < 2_500_000
    drawn = set(re.findall(r'data-chart="([^"]+)"', html))
    files = {path.name for path in (built_report.parent / "figures").iterdir()}
    assert files == {f"{name}{ext}" for name in drawn for ext in (".png", ".svg")}
    assert len(drawn) > 30


def test_one_part_one_arm_one_seed_no_gates_no_analysis(study_writer: Writer) -> None:
    root = study_writer("text", ["none"], [0], analysis=False)
    path = build_report(root)
    text = text_of(path.read_text())
    assert path == root / "report.html"
    assert "1 part and 1 run, finished" in text
    assert "There is no comparison to report in this part." in text
    assert "Gate scores" not in text
    assert "no analysis.json" in text


def test_a_part_finished_study_says_so(study_writer: Writer) -> None:
    def interrupt(results: dict[str, Any]) -> None:
        results["runs"][1] = {
            **results["runs"][1], "status": "diverged", "metrics": {"val_loss": float("nan")},
        }  # fmt: skip
        del results["runs"][2]
        results["summaries"] = results["comparisons"] = []

    text = text_of(html_of(study_writer("text", ["none", "sdpa-head"], [0, 1], edit=interrupt)))
    assert "This part is not complete: 4 runs: 2 finished, 1 diverged, 1 missing." in text
    assert "none, seed 1: diverged after step 600." in text
    assert "Missing: sdpa-head (seed 0)." in text
    assert "A cross ends a run that is diverged." in text
    assert "1 of 2" in text


def test_nothing_has_run_yet(study_writer: Writer) -> None:
    def empty(results: dict[str, Any]) -> None:
        results["runs"] = results["summaries"] = results["comparisons"] = []
        results["parts"]["text"]["seeds"] = [0, 1]

    text = text_of(html_of(study_writer("text", ["none"], [0, 1], edit=empty)))
    assert "2 runs: 0 finished, 2 missing" in text


def test_many_settings_are_counted_not_listed(study_writer: Writer) -> None:
    def sweep(results: dict[str, Any]) -> None:
        one = results["comparisons"][0]
        results["comparisons"] = [
            {**one, "axes": {"optim.lr": i / 1000}, "verdict": word, "difference": 0.1}
            for i, word in enumerate(["lower"] * 9 + ["no difference"] * 5)
        ]

    text = text_of(html_of(study_writer("text", ["none", "sdpa-head"], [0, 1], edit=sweep)))
    assert "sdpa-head: better in 9, no difference in 5 of 14 settings." in text


def test_axes_give_a_chart_a_setting(study_writer: Writer) -> None:
    def sweep(results: dict[str, Any]) -> None:
        for kind in ("runs", "summaries", "comparisons"):
            items = results[kind]
            results[kind] = [
                {**item, "axes": {"optim.lr": lr}} for lr in (0.001, 0.003) for item in items
            ]

    root = study_writer("text", ["none", "sdpa-head"], [0, 1], edit=sweep, analysis=False)
    page = study_page(read_study(root))
    names = [figure.name for figure in page.figures]
    assert names == [
        f"text-{what}-lr-0-{lr}"
        for whats in (("val-loss", "val-loss-difference"), ("validation-loss",))
        for lr in ("001", "003")
        for what in whats
    ]
    assert "sdpa-head, lr=0.003" in text_of(page.html())


def test_what_comes_from_configs_is_escaped(study_writer: Writer) -> None:
    evil = "<img src=x onerror=alert(1)>"

    def spoil(results: dict[str, Any]) -> None:
        results.update(title=evil, summary=evil, command=evil, versions={evil: evil})
        part = results["parts"]["text"]
        part.update(title=evil, question=evil, note=evil, claims=[evil], arm_overrides={evil: evil})
        part["metrics"].append(evil)
        for run in results["runs"]:
            run["status"] = run["status"] if run["seed"] else evil

    html = html_of(study_writer("text", ["none"], [0, 1], edit=spoil))
    assert "<img" not in html
    assert html.count("&lt;img src=x onerror=alert(1)&gt;") > 10


def test_an_unreadable_folder_leaves_the_old_report(study_writer: Writer) -> None:
    root = study_writer("text", ["none"], [0], analysis=False)
    (root / "report.html").write_text("old")
    (root / "results.json").write_text("{")
    with pytest.raises(ValueError, match=re.escape("results.json")):
        build_report(root)
    assert (root / "report.html").read_text() == "old"
