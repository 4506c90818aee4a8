import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from gatelm.config import ConfigError
from gatelm.data.errors import DataError
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder
from gatelm.train.saving.export import export_model, load_model


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


def test_the_config_is_one_that_transformers_reads(model, tmp_path):
    export_model(tmp_path / "model", model, byte_tokenizer(), {}, context_tokens=64)
    tree = json.loads((tmp_path / "model" / "config.json").read_text())
    assert tree["model_type"] == "gatelm"
    assert tree["architectures"] == ["GatelmForCausalLM"]
    assert tree["tie_word_embeddings"] == (model.cfg.head == "tied")
    assert tree["dtype"] == "float32"
    assert tree["model"] == model.cfg.tree()
    assert tree["max_position_embeddings"] == 64
    ids = {"bos_token_id": 256, "eos_token_id": 257, "pad_token_id": 257}
    assert ids.items() <= tree.items()
    assert json.loads((tmp_path / "model" / "generation_config.json").read_text()) == ids


def test_a_config_of_the_first_version_is_read(model, tmp_path):
    export_model(tmp_path, model, None, {})
    (tmp_path / "config.json").write_text(json.dumps(model.cfg.tree()))
    tokens = torch.arange(12).view(2, 6)
    assert torch.equal(load_model(tmp_path)[0](tokens), model(tokens))


def test_shards_are_read(model, tmp_path):
    export_model(tmp_path, model, None, {})
    weights = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    shards = {
        name: {k: v for i, (k, v) in enumerate(weights.items()) if i % 2 == n}
        for n, name in enumerate(names)
    }
    for name, shard in shards.items():
        save_file(shard, tmp_path / name, metadata={"format": "pt"})
    index = {"weight_map": {key: name for name, shard in shards.items() for key in shard}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    tokens = torch.arange(12).view(2, 6)
    assert torch.equal(load_model(tmp_path)[0](tokens), model(tokens))
    (tmp_path / names[1]).unlink()
    with pytest.raises(ConfigError, match=f"1 of 2 weight files are missing, such as {names[1]}"):
        load_model(tmp_path)


def test_a_tokenizer_with_unusual_names(model, tmp_path):
    export_model(tmp_path, model, byte_tokenizer(), {})
    path = tmp_path / "tokenizer.json"
    unusual = path.read_text().replace("<|bos|>", "<<start>>").replace("<|eos|>", "<<end>>")
    path.write_text(unusual)
    names = {"bos_token": None, "eos_token": {"content": "<<end>>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    tokenizer = load_model(tmp_path)[1]
    assert (tokenizer.bos, tokenizer.eos) == ("<<end>>", "<<end>>")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(DataError, match="no usual BOS or EOS"):
        load_model(tmp_path)


def test_contradictions_in_the_config_are_one_sentence(model, tmp_path):
    export_model(tmp_path, model, None, {})
    config = tmp_path / "config.json"
    tree = json.loads(config.read_text())

    def message(**changes):
        config.write_text(json.dumps({**tree, **changes}))
        with pytest.raises(ConfigError) as error:
            load_model(tmp_path)
        assert "\n" not in str(error.value)
        return str(error.value)

    contradiction = message(tie_word_embeddings=model.cfg.head != "tied")
    assert f"but model.head is '{model.cfg.head}'" in contradiction
    assert "num_layers: stands beside model" in message(num_layers=5)
    assert "not a config of gatelm (it is one of model_type 'llama')" in message(model_type="llama")
    assert "the tree of the model's config is missing" in message(model=None)


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
    config.write_text(json.dumps({**tree, "model": {**tree["model"], "num_layers": 3}}))
    with pytest.raises(ConfigError, match="does not fit") as error:
        load_model(tmp_path)
    assert "\n" not in str(error.value)
    config.write_text(json.dumps(tree))
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_model(tmp_path)


def test_what_an_older_folder_says_goes_on_to_hold(model, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    export_model(old, model, byte_tokenizer(), {}, context_tokens=64)
    tree = json.loads((old / "config.json").read_text())
    (old / "config.json").write_text(json.dumps({**tree, "bos_token_id": 9, "eos_token_id": 10}))
    (old / "generation_config.json").write_text('{"eos_token_id": [10, 11], "top_p": 0.9}')
    (old / "chat_template.jinja").write_text("{{ messages }}")
    settings = json.loads((old / "tokenizer_config.json").read_text())
    (old / "tokenizer_config.json").write_text(json.dumps({**settings, "bos_token": "!"}))
    (old / "tokenizer.json").write_text(byte_tokenizer().to_json())  # puts no BOS in front
    export_model(new, model, byte_tokenizer(), {}, context_tokens=16, trained_from=old)
    assert (new / "tokenizer.json").read_text() == byte_tokenizer().to_json()
    tree = json.loads((new / "config.json").read_text())
    assert (tree["max_position_embeddings"], tree["bos_token_id"], tree["eos_token_id"]) == (
        64,
        9,
        10,
    )
    assert (new / "chat_template.jinja").read_text() == "{{ messages }}"
    assert json.loads((new / "tokenizer_config.json").read_text())["bos_token"] == "!"
    generation = json.loads((new / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [10, 11, 257]
    assert generation["top_p"] == 0.9
    # without settings of its own: the older model's end and that of the training text
    (old / "generation_config.json").unlink()
    export_model(new, model, byte_tokenizer(), {}, trained_from=old)
    generation = json.loads((new / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [10, 257]
