import json

import pytest
from typer.testing import CliRunner

from gatelm.cli.main import app
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import export_model


@pytest.fixture
def folder(tmp_path):
    tree = {
        "vocab_size": 258,
        "hidden_dim": 16,
        "num_layers": 1,
        "layer": {"mixer": {"num_heads": 2}, "ffn": {"ffn_dim": 24}},
    }
    model = Decoder(ModelConfig.parse(tree))
    init_weights(model, 0)
    export_model(tmp_path / "trained", model, byte_tokenizer(), {})
    return tmp_path


def test_what_a_trained_model_gives_is_told_from_defaults(folder):
    recipe = folder / "on.yaml"
    recipe.write_text(
        f"init_from: {folder / 'trained'}\n"
        "model: {layer: {gates: [{site: sdpa, init: {weight: zeros}}]}}\n"
        "data: {kind: text, source: sotu, seq_len: 64}\n"
        "train: {total_steps: 1}\n"
    )
    result = CliRunner().invoke(app, ["config", "show", str(recipe), "--json"])
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)["values"]
    found = {path: (entry["value"], entry["source"]) for path, entry in values.items()}
    assert found["model.hidden_dim"] == (16, "init_from")
    assert found["data.tokenizer.kind"] == ("file", "init_from")
    assert found["model.layer.gates.0.init.weight"] == ("zeros", "on.yaml")
    assert found["data.packing"] == ("concat", "default")
    assert found["init_from.new_gates"][0] == "preserve"
