import json
import shutil

import pytest
from typer.testing import CliRunner

from gatelm.cli import main as main_module
from gatelm.cli.main import app
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import export_model, load_model

TREE = {
    "vocab_size": 258,
    "hidden_dim": 16,
    "num_layers": 2,
    "layer": {
        "mixer": {"num_heads": 4, "num_kv_heads": 2},
        "ffn": {"ffn_dim": 24},
        "gates": ["sdpa-head"],
    },
}


@pytest.fixture
def folder(tmp_path):
    model = Decoder(ModelConfig.parse(TREE, "model"))
    init_weights(model, 0)
    export_model(tmp_path / "ours", model, byte_tokenizer(), {}, context_tokens=16)
    return tmp_path / "ours"


@pytest.fixture
def text(tmp_path):
    for number in range(30):
        words = f"{number} times a few words to go on with, and then some more of them. " * 3
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{number}.txt").write_text(words)
    return tmp_path / "texts"


def gatelm(*words):
    return CliRunner().invoke(app, ["extend", *map(str, words)])


def rope(folder):
    return load_model(folder)[0].cfg.layer.mixer.rope


def test_what_changed_is_printed(folder, tmp_path):
    result = gatelm(folder, tmp_path / "out", "--to", "64", "--set", "beta_fast=16")
    assert result.exit_code == 0, result.output
    assert "context" in result.output
    assert "16 tokens" in result.output
    assert "64 tokens  *" in result.output
    scaling = rope(tmp_path / "out").scaling
    assert (scaling.kind, scaling.factor, scaling.beta_fast) == ("yarn", 4.0, 16.0)
    tokenizer = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert tokenizer["model_max_length"] == 64
    record = json.loads((tmp_path / "out" / "extension.json").read_text())
    assert record["method"] == "yarn"
    assert record["to_tokens"] == 64


def test_json_is_for_programs(folder, tmp_path):
    result = gatelm(folder, tmp_path / "out", "--to", "0.0625k", "--method", "none", "--json")
    found = json.loads(result.stdout)
    assert found["to_tokens"] == 64
    assert found["original_tokens"] == 16
    assert rope(tmp_path / "out").scaling is None


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--to", "lots"], "--to 'lots': not a number of tokens"),
        (["--to", "9" * 26], "not a number of tokens"),
        (["--to", "8"], "was trained on 16 tokens already"),
        (["--to", "64", "--set", "beta"], "--set beta: expected KEY=VALUE"),
        (["--to", "64", "--train-length", "32"], "says nothing without --train-tokens"),
        (["--to", "64", "--lr", "1e-3"], "--lr: says nothing without --train-tokens"),
        (
            ["--to", "64", "--train-tokens", "1k", "--train-length", "128"],
            "--train-length 128: is more than --to 64",
        ),
    ],
)
def test_a_mistake_is_one_sentence(words, expected, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["gatelm", "extend", str(folder), str(tmp_path / "o"), *words])
    with pytest.raises(SystemExit) as stopped:
        main_module.main()
    assert stopped.value.code == 2
    errors = capsys.readouterr().err.splitlines()
    assert expected in errors[-1]
    assert not (tmp_path / "o").exists()


def test_training_at_the_new_length_has_the_scaling_in_place(folder, text, tmp_path):
    words = ["--to", "32", "--method", "linear", "--train-tokens", "256", "--batch-size", "2"]
    result = gatelm(folder, tmp_path / "out", *words, "--data", text, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "trained on 2" in result.output
    before, after = load_model(folder)[0], load_model(tmp_path / "out")[0]
    assert rope(tmp_path / "out").scaling.factor == 2.0
    assert not before.layers[0].attn.o_proj.weight.equal(after.layers[0].attn.o_proj.weight)
    started = load_model(tmp_path / "out.training" / "start")[0]
    assert started.cfg.layer.mixer.rope == rope(tmp_path / "out")
    # the finished training is found again, and only the folder is written anew
    shutil.rmtree(tmp_path / "out")
    weights = tmp_path / "out.training" / "run" / "model" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    again = gatelm(folder, tmp_path / "out", *words, "--data", text, "--device", "cpu")
    assert again.exit_code == 0, again.output
    assert weights.stat().st_mtime_ns == written


def test_training_at_a_shorter_length_comes_after_the_base_and_before_the_scaling(
    folder, text, tmp_path
):
    words = ["--to", "128", "--base", "1e6", "--train-tokens", "128", "--train-length", "32"]
    result = gatelm(folder, tmp_path / "out", *words, "--data", text, "--device", "cpu")
    assert result.exit_code == 0, result.output
    final = rope(tmp_path / "out")
    assert (final.base, final.scaling.kind) == (1e6, "yarn")
    assert (final.scaling.original_tokens, final.scaling.factor) == (32, 4.0)
    start = rope(tmp_path / "out.training" / "start")
    assert (start.base, start.scaling) == (1e6, None)
    assert "before the scaling" in (tmp_path / "out" / "README.md").read_text()
