import json
import re

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from gatelm.cli import main as main_module
from gatelm.cli.main import app
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.hf.convert.families.registry import targets
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import export_model, load_model

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
