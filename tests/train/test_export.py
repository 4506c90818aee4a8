import json

import pytest
import torch
from safetensors import safe_open

from gatelm.config import ConfigError
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder
from gatelm.train.export import export_model, load_model


@pytest.fixture(params=["tied", "untied"])
def model(request, tiny):
    cfg = tiny({"model": {"head": request.param}}).model_for(258)
    model = Decoder(cfg)
    init_weights(model, 0)
    return model.eval()


def test_the_model_comes_back_bit_for_bit(model, tmp_path):
    export_model(tmp_path / "model", model, byte_tokenizer(), {"Seed": "1"})
    for path in (tmp_path / "model", tmp_path):
        loaded, tokenizer = load_model(path)
        assert not loaded.training
        tokens = torch.arange(12).view(2, 6)
        assert torch.equal(loaded(tokens), model(tokens))
        assert tokenizer is not None
        assert tokenizer.encode("gate").tolist() == byte_tokenizer().encode("gate").tolist()


def test_the_folder_is_what_others_expect(model, tmp_path):
    export_model(tmp_path / "model", model, None, {"Seed": "17"})
    names = sorted(p.name for p in (tmp_path / "model").iterdir())
    assert names == ["README.md", "config.json", "model.safetensors"]
    with safe_open(tmp_path / "model" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(model.state_dict())
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| Seed | 17 |" in card
    assert "gate at `sdpa`" in card
    assert load_model(tmp_path)[1] is None


def test_an_older_model_is_replaced(model, tmp_path):
    export_model(tmp_path / "model", model, byte_tokenizer(), {})
    export_model(tmp_path / "model", model, None, {})
    assert not (tmp_path / "model" / "tokenizer.json").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_mistakes_are_one_sentence(model, tmp_path):
    with pytest.raises(ConfigError, match="not a model folder"):
        load_model(tmp_path)
    export_model(tmp_path / "model", model, None, {})
    config = tmp_path / "model" / "config.json"
    tree = json.loads(config.read_text())
    config.write_text(json.dumps({**tree, "num_layers": 3}))
    with pytest.raises(ConfigError, match="does not fit") as error:
        load_model(tmp_path)
    assert "\n" not in str(error.value)
    config.write_text(json.dumps(tree))
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_model(tmp_path)
