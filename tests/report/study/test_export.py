import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gatelm.analysis.metrics.registry import describe
from gatelm.cli.study.commands import app
from gatelm.config import ConfigError
from gatelm.report import metrics as shown
from gatelm.report.load import read_study
from gatelm.report.study import export
from gatelm.report.study.export import MOST_SVG_BYTES, commands, export_study
from gatelm.study.results.schema import StudyResults

Writer = Callable[..., Path]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def forced(results):
    """The causal check of the gated runs, and a command with the folder of a machine."""
    results["command"] = "gatelm study run demo --set size=laptop --out /a/b"
    for run in results["runs"]:
        if run["gate_parameters"]:
            run["metrics"]["loss_gates_shut_change"] = 0.5 + 0.25 * run["seed"]


def test_the_folder_says_what_came_out(study_writer: Writer, tmp_path: Path) -> None:
    root = study_writer("mechanism", ["none", "sdpa-head", "non-sparse"], (0, 1), edit=forced)
    written = export_study(root, tmp_path / "record")
    text = written[0].read_text()
    assert {path.name for path in written} == set(contents(tmp_path / "record"))
    assert "# What gated attention does at small scale" in text
    assert "1 part and 6 runs, all finished." in text
    assert "- Published: A sparse, input-dependent gate after SDPA" in text
    assert re.search(r"\| in gates \| 0 \| 129 \| ", text)
    assert "under uniform attention: 0.0580." in text
    assert re.search(r"\| sdpa-head \| .0\.[^|]*\| [^|]* to [^|]*\| 2 \| [^|]*\| lower \|", text)
    assert re.search(
        r"\| non-sparse \| [^|]*\| [^|]*\| 2 \| [^|]*\| no difference \| [\d.]+ \|", text
    )
    assert re.search(r"\| sdpa-head \| \+0\.625 \(\+0\.500 to \+0\.750\) \|", text)
    assert "(`sink_rate`): Share of (document, layer, head)" in text
    assert "gatelm study run demo --set size=laptop\ngatelm study claims runs/demo\n" in text
    assert "gatelm study export runs/demo DEST" in text
    assert "## Published statements" in text
    assert "`first-token-head`" in text
    assert "/a/b" not in text
    assert "torch 2.13.0" in text
    drawn = set(re.findall(r"\]\(([^)]+\.svg)\)", text))
    assert {path.name for path in written if path.suffix == ".svg"} == drawn
    assert 2 <= len(drawn) <= 4
    assert all(path.stat().st_size < MOST_SVG_BYTES for path in written if path.suffix == ".svg")
    assert (tmp_path / "record" / "results.csv").read_text().count("\n") == 7


def rows_of(text: str, first: str) -> list[list[str]]:
    """Cells of the table whose head starts so."""
    (table,) = (t for t in text.split("\n\n") if t.startswith(first))
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]


@pytest.mark.parametrize("down", ["arms", "metrics"])
def test_what_there_is_more_of_stands_in_the_rows(
    down: str, study_writer: Writer, tmp_path: Path
) -> None:
    def one_metric(results):
        results["parts"]["text"]["metrics"] = ["val_loss"]

    edit = one_metric if down == "arms" else None
    root = study_writer("text", ["none", "sdpa-head"], (0, 1), edit=edit)
    text = export_study(root, tmp_path / "record")[0].read_text()
    head, _, *rows = rows_of(text, "| arm | seeds |" if down == "arms" else "| arm | none |")
    arms, columns = [row[0] for row in rows], head[1:]
    if down == "metrics":
        arms, columns = columns, arms
    assert arms == ["none", "sdpa-head"]
    assert columns[:2] == ["seeds", "Validation loss (nats per token)"]
    assert columns[-1] == "in gates"


def test_only_primary_metrics_are_compared_in_sight(study_writer: Writer, tmp_path: Path) -> None:
    root = study_writer("mechanism", ["none", "sdpa-head"], (0, 1))
    text = export_study(root, tmp_path / "record")[0].read_text()
    in_sight = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    tests = re.compile(r"\*\*(.+?)\*\*.*minus `none`:")
    (part,) = read_study(root).parts
    assert tests.findall(in_sight) == [shown.describe(name).axis for name in part.primary_metrics]
    assert len(tests.findall(text)) > len(part.primary_metrics)


def test_a_reading_by_hand_survives_and_the_bytes_are_the_same(
    study_writer: Writer, tmp_path: Path
) -> None:
    root = study_writer("mechanism", ["none", "sdpa-head"], (0, 1))
    folder = tmp_path / "record"
    export_study(root, folder)
    first = contents(folder)
    assert b"Not written yet." in first["README.md"]
    export_study(root, folder)
    assert contents(folder) == first
    readme = folder / "README.md"
    reading = "## Reading\n\nThe sink goes.\n\n### But\n\n| a |\n| - |"
    readme.write_text(
        readme.read_text()
        .replace("## Reading\n\nNot written yet.", reading)
        .replace("# What", "# X")
    )
    (folder / "notes.txt").write_text("mine")
    export_study(root, folder)
    text = readme.read_text()
    assert reading + "\n\n## Mechanism" in text
    assert text.startswith("# What")
    assert (folder / "notes.txt").read_text() == "mine"


def test_figures_that_are_no_longer_drawn_go(
    study_writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = study_writer("text", ["none", "sdpa-head"], (0, 1))
    folder = tmp_path / "record"
    export_study(root, folder)
    assert list(folder.glob("*.svg"))
    monkeypatch.setattr(export, "MOST_SVG_BYTES", 10)
    export_study(root, folder)
    assert not list(folder.glob("*.svg"))


def test_means_along_an_axis_of_numbers(study_writer: Writer, tmp_path: Path) -> None:
    def swept(results):
        rates = {0: 1e-3, 1: 1e-2}
        for run in results["runs"]:
            run["axes"] = {"optim.lr": rates[run["seed"]]}
        results["summaries"] = [
            {**s, "axes": {"optim.lr": rate}} for s in results["summaries"] for rate in (1e-3, 1e-2)
        ]

    root = study_writer("text", ["none", "sdpa-head"], (0, 1), edit=swept)
    written = export_study(root, tmp_path / "record")
    assert "text-val-loss-by-lr.svg" in {path.name for path in written}
    assert "sdpa-head, lr=0.01" in written[0].read_text()


def test_a_number_over_the_whole_axis_has_its_own_table(
    study_writer: Writer, tmp_path: Path
) -> None:
    def swept(results):
        for run in results["runs"]:
            run["axes"] = {"optim.lr": 1e-3}
        results["summaries"] = [{**s, "axes": {"optim.lr": 1e-3}} for s in results["summaries"]]
        one = results["summaries"][0]
        results["summaries"] += [
            {**one, "arm": arm, "axes": {}, "metric": "best_lr_loss"}
            for arm in ("none", "sdpa-head")
        ]
        part = results["parts"]["text"]
        part["metrics"] = [*part["metrics"], "best_lr_loss"]
        part["primary_metrics"] = [*part["primary_metrics"], "best_lr_loss"]

    root = study_writer("text", ["none", "sdpa-head"], (0, 1), edit=swept)
    text = export_study(root, tmp_path / "record")[0].read_text()
    tables = [t for t in text.split("\n\n") if "| Validation loss at the best" in t]
    assert len(tables) == 1
    assert [row.split(" | ")[0] for row in tables[0].splitlines()[2:]] == ["| none", "| sdpa-head"]


def test_an_unfinished_study_says_so(study_writer: Writer, tmp_path: Path) -> None:
    def cut(results):
        results["runs"] = results["runs"][:1]
        results["summaries"] = results["comparisons"] = []
        results["runs"][0]["status"] = "diverged"

    root = study_writer("text", ["none", "sdpa-head"], (0, 1), edit=cut, analysis=False)
    text = export_study(root, tmp_path / "record")[0].read_text()
    assert "0 finished, 1 diverged, 1 missing" in text
    assert "- none, seed 0: diverged after step 600." in text


def test_other_folders_are_left_alone(study_writer: Writer, tmp_path: Path) -> None:
    root = study_writer("text", ["none"], (0,))
    with pytest.raises(ConfigError, match=r"holds .* but no results.csv, so it is not an export"):
        export_study(root, root)
    with pytest.raises(ConfigError, match="is a file, not a folder for an export"):
        export_study(root, root / "results.json")
    with pytest.raises(ConfigError, match="no results; run the study first"):
        export_study(tmp_path, tmp_path / "record")
    assert not (tmp_path / "record").exists()


def test_the_command_prints_what_it_wrote(study_writer: Writer, tmp_path: Path) -> None:
    root = study_writer("text", ["none", "sdpa-head"], (0, 1), analysis=False)
    words = ["export", str(root), str(tmp_path / "record")]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[0] == str(tmp_path / "record" / "README.md")


def test_commands_leave_the_folder_out():
    assert commands(StudyResults(study="a", parts={})) == [
        "gatelm study run a",
        "gatelm study claims runs/a",
        "gatelm study export runs/a DEST",
    ]
    typed = "x --out '/a b' --reuse /tmp/controls --reuse /tmp/mine --set y=1"
    assert (
        commands(StudyResults(study="a", command=typed, parts={}))[0]
        == "x --reuse runs/controls --set y=1"
    )


def test_causal_metrics_are_described():
    assert all(
        "minus that of the model" in describe(name).definition for name in export.CAUSAL_METRICS
    )


def test_html_in_titles_claims_and_arms_is_text(study_writer: Writer, tmp_path: Path) -> None:
    script = "<script>alert(1)</script> p < 0.05"

    def hostile(results):
        results["title"] = script
        part = next(iter(results["parts"].values()))
        part["title"] = part["question"] = part["note"] = script
        part["claims"] = [f"{script} | x"]

    root = study_writer("mechanism", ["none", "sdpa-head"], (0, 1), edit=hostile)
    text = export_study(root, tmp_path / "record")[0].read_text()
    assert "<script" not in text
    assert "</script" not in text
    assert "# &lt;script>alert(1)&lt;/script> p < 0.05" in text
    assert "- Published: &lt;script>" in text
