import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gatelm.config.base import ConfigError
from gatelm.report.load import read_study
from gatelm.report.study.sentences import progress, unfinished

Writer = Callable[..., Path]


def test_no_results_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no results; run the study first"):
        read_study(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"parts": []}'])
def test_results_that_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(ConfigError, match="run the study again"):
        read_study(tmp_path)


def test_a_broken_line_and_missing_files_are_remarks(study_writer: Writer) -> None:
    root = study_writer("text", ["none"], [0], analysis=False)
    log = next(root.glob("runs/*/*/*/metrics.jsonl"))
    whole = len(read_study(root).runs[0].train)
    log.write_text(log.read_text()[:-20])  # a writer that was killed
    run = read_study(root).runs[0]
    assert "1 unreadable line in metrics.jsonl" in run.problems
    assert "no analysis.json" in run.problems
    assert len(run.train) in (whole, whole - 1)


def test_runs_that_never_started_are_listed(study_writer: Writer) -> None:
    def drop(results: dict[str, Any]) -> None:
        results["runs"] = [r for r in results["runs"] if (r["arm"], r["seed"]) != ("none", 1)]

    part = read_study(study_writer("text", ["none", "sdpa-head"], [0, 1], edit=drop)).parts[0]
    assert progress(part.runs) == "4 runs: 3 finished, 1 missing"
    assert unfinished(part) == ["Missing: none (seed 1)."]


def test_axes_make_groups_of_their_own(study_writer: Writer) -> None:
    def sweep(results: dict[str, Any]) -> None:
        for run in results["runs"]:
            run["axes"] = {"optim.lr": 0.001 * (1 + run["seed"])}

    part = read_study(study_writer("text", ["none"], [0, 1], edit=sweep)).parts[0]
    assert {"none, lr=0.001", "none, lr=0.002"} == set(part.groups())
    # Every arm at every point of the axes with every seed: two of the four were not run.
    assert progress(part.runs) == "4 runs: 2 finished, 2 missing"


def test_nan_in_a_log_is_read(study_writer: Writer) -> None:
    root = study_writer("text", ["none"], [0])
    log = next(root.glob("runs/*/*/*/metrics.jsonl"))
    with log.open("a") as file:
        file.write(json.dumps({"kind": "train", "step": 601, "loss": float("nan")}) + "\n")
    assert read_study(root).runs[0].train[-1]["step"] == 601
