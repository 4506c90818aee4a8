import json
import re

import pytest
from typer.testing import CliRunner

from gatelm.cli.data import app
from gatelm.config import ConfigError

runner = CliRunner()


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("GATELM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(21):
        (folder / f"{number}.txt").write_text(f"document number {number}\n" * 3)
    return str(folder)


def test_prepare_writes_then_finds(source, tmp_path):
    out = str(tmp_path / "out")
    command = ["prepare", source, "--tokenizer", "byte", "--out", out]
    first = runner.invoke(app, command)
    assert first.exit_code == 0, first.output
    assert f"{out} (written)" in first.output
    assert "writing tokens" in first.stderr
    second = runner.invoke(app, [*command, "--json"])
    facts = json.loads(second.stdout)
    assert (facts["status"], facts["vocab_size"], facts["folder"]) == ("found", 258, out)
    assert facts["train"]["num_documents"] == 20
    assert facts["validation"]["num_documents"] == 1


def test_prepare_takes_settings(source):
    done = runner.invoke(
        app,
        ["prepare", source, "--vocab-size", "270", "--set", "holdout_every=7", "--json"],
    )
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["vocab_size"] == 270
    assert facts["validation"]["num_documents"] == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.txt"], "neither an existing file"),
        (["sotu", "--tokenizer", "none.json"], r"none\.json: the tokenizer cannot be read"),
        (["sotu", "--set", "holdout=3"], "unknown key 'holdout'"),
        (["sotu", "--set", "holdout"], "expected KEY=VALUE"),
        (["sotu", "--vocab-size", "10"], r"tokenizer\.vocab_size"),
    ],
)
def test_mistakes_are_config_errors(arguments, sentence):
    done = runner.invoke(app, ["prepare", *arguments])
    assert isinstance(done.exception, ConfigError)
    assert re.search(sentence, str(done.exception))
