"""The documents against the code: links, names, and the commands one would paste."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

import gatelm
from gatelm.cli.main import app
from gatelm.nn.model import ModelConfig

SOURCE = Path(gatelm.__file__).parent
REPOSITORY = SOURCE.parents[1]
DOCUMENTS = sorted(
    [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")], key=lambda path: str(path)
)
BY_NAME = [pytest.param(path, id=path.relative_to(REPOSITORY).as_posix()) for path in DOCUMENTS]


@pytest.mark.parametrize("path", BY_NAME)
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8"))
    local = [t.partition("#")[0] for t in targets if not re.match(r"\w+:|#", t)]
    assert [t for t in local if not (path.parent / t).exists()] == []


def headings(path: Path) -> set[str]:
    """Anchors as a forge makes them."""
    found = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


@pytest.mark.parametrize("path", BY_NAME)
def test_anchors_are_headings(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]*#[^)\s]+)\)", path.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        if "://" not in file:
            assert anchor in headings(path.parent / file if file else path), target


def test_the_contributors_guide_names_what_there_is() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    packages = {p.name for p in SOURCE.iterdir() if (p / "__init__.py").is_file()}
    assert packages == set(re.findall(r"^    (\w+)/ ", text, flags=re.MULTILINE)) - {"recipes"}
    source = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    for name in re.findall(r"`([A-Z][A-Za-z]+Config|[A-Z_]{4,}|RopeScaling)`", text):
        assert re.search(rf"^(class )?{name}\b( =|:|\()", source, flags=re.MULTILINE), name
    for file in re.findall(r"`([a-z_]+/[\w/]+\.(?:py|yaml))`", text):
        assert (SOURCE / file).is_file() or (REPOSITORY / file).is_file(), file


@pytest.mark.parametrize("path", BY_NAME)
def test_python_imports_what_there_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for module, names in re.findall(r"^ *from (gatelm[\w.]*) import ([\w, ]+)", text, re.MULTILINE):
        for name in names.split(","):
            assert hasattr(import_module(module), name.strip()), f"{module}: {name}"
    for name in re.findall(r"\bgatelm\.([A-Z]\w+|\w+(?=\())", text):
        assert hasattr(gatelm, name), name


def commands(path: Path) -> Iterator[list[str]]:
    """Words of each gatelm command in code, continued lines joined."""
    fenced = False
    for line in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        fenced ^= line.startswith("```")
        typed = re.match(r"(?:    )?(?:\$ )?(?:\.venv/bin/)?gatelm (.+)$", line)
        if typed is not None and (fenced or line.startswith("    ")):
            yield shlex.split(re.sub(r"\s#.*", "", typed[1]))


def refused(words: list[str]) -> str | None:
    """What the command line says about options and names that it does not know; nothing runs."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        if not words or words[0] not in command.commands:
            return f"no command {words[:1]}"
        command, words = command.commands[words[0]], words[1:]
    known = {spelling: o for o in command.params for spelling in [*o.opts, *o.secondary_opts]}
    unknown = [w for w in words if w.startswith("-") and w != "-" and w.split("=")[0] not in known]
    return f"no option {unknown}" if unknown else None


@pytest.mark.parametrize("path", BY_NAME)
def test_commands_have_the_options_that_are_written(path: Path) -> None:
    for words in commands(path):
        assert refused(words) is None, " ".join(words)


def test_a_stale_command_would_be_found() -> None:
    assert refused(["train", "text", "--steps", "3"]) == "no option ['--steps']"
    assert refused(["studies"]) == "no command ['studies']"
    assert refused(["study", "run", "demo", "--out", "x"]) is None


def blocks(kind: str) -> list[str]:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"```{kind}\n(.*?)```", text, flags=re.DOTALL)


def test_the_readmes_python_runs() -> None:
    (block,) = blocks("python")
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["logits"].shape == (1, 16, names["cfg"].vocab_size)


def test_the_readmes_study_can_be_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, model = blocks("yaml")
    (tmp_path / "my-texts").mkdir()
    (tmp_path / "my-texts" / "one.txt").write_text("Some text of one's own.")
    (tmp_path / "my-study.yaml").write_text(study)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["study", "plan", "my-study.yaml"])
    assert result.exit_code == 0, result.exception
    assert "9 of 9 runs to train" in result.output
    tree = {"vocab_size": 64, "hidden_dim": 64, **yaml.safe_load(model)["model"]}
    layers = ModelConfig.parse(tree).layers()
    assert [layer.mixer.kind for layer in layers] == (["delta"] * 3 + ["attention"]) * 2
    assert [len(layer.gates) for layer in layers] == [0, 0, 0, 1] * 2


def test_every_promise_of_reliability_has_its_test() -> None:
    text = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8")
    file = ""
    found = 0
    for path, name in re.findall(r"`(tests/[\w/.]+)?::(\w+)`", text):
        file = path or file
        assert f"def {name}(" in (REPOSITORY / file).read_text(encoding="utf-8"), f"{file}::{name}"
        found += 1
    assert found > 40
