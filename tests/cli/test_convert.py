import json
import re
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from gatelm.cli import main as main_module
from gatelm.cli.main import app
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.hf.convert.families.registry import targets
from gatelm.hf.load import open_model
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import export_model, load_model

sys.path.insert(0, str(Path(__file__).parents[1] / "sinks"))
from planted import planted, some_texts

TREE = {
    "vocab_size": 258,
    "hidden_dim": 16,
    "num_layers": 2,
    "layer": {
        "mixer": {"num_heads": 4, "num_kv_heads": 2, "qk_norm": {}},
        "ffn": {"ffn_dim": 24},
        "gates": ["sdpa-head"],
    },
}


@pytest.fixture
def folder(tmp_path):
    model = Decoder(ModelConfig.parse(TREE, "model"))
    init_weights(model, 0)
    export_model(tmp_path / "ours", model, byte_tokenizer(), {})
    return tmp_path / "ours"


def gatelm(*words):
    return CliRunner().invoke(app, ["convert", *map(str, words)])


def test_a_model_is_converted_and_the_numbers_printed(folder, tmp_path):
    result = gatelm(folder, tmp_path / "out", "--to", "qwen3_5_text")
    assert result.exit_code == 0, result.output
    assert "verified: largest logit difference" in result.output
    assert "gate rows repeated" in result.output
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (
        folder / "tokenizer.json"
    ).read_bytes()
    back = gatelm(tmp_path / "out", tmp_path / "back", "--no-verify")
    assert "not verified" in back.output
    assert load_model(tmp_path / "back")[0].cfg == load_model(folder)[0].cfg


def test_json_is_for_programs(folder, tmp_path):
    result = gatelm(folder, tmp_path / "out", "--to", "qwen3_next", "--json")
    found = json.loads(result.stdout)
    assert found["target"] == "qwen3_next"
    assert found["verified"]["passed"] is True
    assert found["verified"]["kl"] < 1e-8


def test_the_plan_names_engines_and_writes_nothing(folder, tmp_path):
    result = gatelm(folder, "--plan")
    assert result.exit_code == 0
    assert "qwen3_5_text (Qwen3.5 text): can be written" in result.output
    assert "vllm-project/vllm#50210" in result.output
    assert "llama (Llama): cannot be written" in result.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ours"]
    options = json.loads(gatelm(folder, "--plan", "--json").stdout)
    assert {o["format"]: o["possible"] for o in options}["paper"] is True


def test_the_plan_of_a_model_with_a_gate_to_come(folder):
    result = gatelm(folder, "--plan", "--add-gate", "value", "--json")
    possible = [o["format"] for o in json.loads(result.stdout) if o["possible"]]
    assert possible == ["gatelm"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name the folder to write"),
        (["out", "--to", "qwen35"], "--to 'qwen35': no such format; did you mean"),
        (["out", "--dtype", "int4"], "--dtype 'int4'"),
        (["out", "--layout", "per_kv_group"], "own folders pack nothing"),
        (["out", "--to", "llama"], "the format has no gates"),
    ],
)
def test_mistakes_are_one_sentence(folder, tmp_path, words, sentence, monkeypatch, capsys):
    words = [str(tmp_path / "out") if word == "out" else word for word in words]
    monkeypatch.setattr("sys.argv", ["gatelm", "convert", str(folder), *words])
    with pytest.raises(SystemExit) as left:
        main_module.main()
    assert left.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert sentence in error
    assert not (tmp_path / "out").exists()


def test_the_help_names_every_format():
    command = get_command(app).commands["convert"]
    listed = next(option for option in command.params if option.name == "to").help
    assert {re.sub(r"\W", "", word) for word in listed.split()} >= set(targets())


@pytest.mark.parametrize("form", ["virtual", "auto"])
def test_sinks_become_gates_in_one_command(tmp_path, form):
    model = planted()
    export_model(tmp_path / "sink", model, byte_tokenizer(), {})
    for number, text in enumerate(some_texts(16, 700)):
        (tmp_path / f"{number}.txt").write_text(text)
    options = ["--sinks-to-gates", str(tmp_path), "--form", form, "--row-tokens", "160"]
    done = CliRunner().invoke(
        app, ["convert", str(tmp_path / "sink"), str(tmp_path / "gates"), *options]
    )
    assert done.exit_code == 0, done.output + str(done.exception)
    assert "strongest sink" in done.stdout
    assert "BOS is dropped" in done.stdout
    measured = json.loads((tmp_path / "gates" / "sinks.json").read_text())
    assert measured["after"]["strongest_sink"]["share"] < 0.1
    probe, tokenizer = open_model(tmp_path / "gates", device="cpu")
    assert not tokenizer.adds_bos
    assert probe.gate_sites[0] == ("sdpa",)
    shown = CliRunner().invoke(
        app, ["generate", str(tmp_path / "gates"), "--prompt", "abc", "--greedy"]
    )
    assert shown.exit_code == 0
    assert shown.stdout.startswith("abc")


def test_sinks_that_cannot_become_gates_leave_what_was_measured(tmp_path):
    export_model(tmp_path / "sink", planted(), byte_tokenizer(), {})
    for number, text in enumerate(some_texts(16, 700)):
        (tmp_path / f"{number}.txt").write_text(text)
    options = ["--sinks-to-gates", str(tmp_path), "--form", "gate", "--row-tokens", "160"]
    done = CliRunner().invoke(
        app, ["convert", str(tmp_path / "sink"), str(tmp_path / "gates"), *options]
    )
    assert "a sink is reborn at position 0" in str(done.exception)
    assert not (tmp_path / "gates").exists()
    assert json.loads((tmp_path / "gates-sinks.json").read_text())["form"] == "gate"
    refused = CliRunner().invoke(
        app,
        ["convert", str(tmp_path / "sink"), str(tmp_path / "no"), *options, "--to", "llama"],
    )
    assert "leave out --to and --add-gate" in str(refused.exception)
