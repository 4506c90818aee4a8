"""The folder that training ends with, as others open it."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import gatelm  # noqa: F401
from gatelm.data.tokenizer import byte_tokenizer, train_bpe
from gatelm.hf.load import open_model
from gatelm.hf.modeling.generation import Sampling, open_generator, stream
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import export_model, load_model

TEXT = "Fellow-citizens of the Senate: na\u00efve <|bos|> 1790,\n  the <|eos|> end."


@pytest.fixture(params=["bytes", "bpe"])
def tokenizer(request):
    return byte_tokenizer() if request.param == "bytes" else train_bpe([TEXT] * 4, 300)


@pytest.fixture
def folder(tokenizer, tmp_path):
    layer = {"mixer": {"num_heads": 2}, "ffn": {"ffn_dim": 16}, "gates": ["sdpa-element"]}
    size = {"vocab_size": tokenizer.vocab_size, "hidden_dim": 16, "num_layers": 2}
    decoder = Decoder(ModelConfig.parse({**size, "init": {"std": 0.4}, "layer": layer}))
    init_weights(decoder, 0)
    export_model(tmp_path / "model", decoder, tokenizer, {}, context_tokens=96)
    return tmp_path / "model"


def test_its_tokenizer_encodes_as_training_did(folder, tokenizer):
    theirs = AutoTokenizer.from_pretrained(folder)
    expected = [tokenizer.bos_id, *tokenizer.encode(TEXT).tolist()]
    assert theirs(TEXT)["input_ids"] == expected
    assert theirs(TEXT, add_special_tokens=False)["input_ids"] == expected[1:]
    assert theirs.decode(expected, skip_special_tokens=True) == TEXT
    assert (theirs.bos_token_id, theirs.eos_token_id) == (tokenizer.bos_id, tokenizer.eos_id)
    assert theirs.pad_token_id == tokenizer.eos_id
    assert theirs.model_max_length == 96
    ours = load_model(folder)[1]
    assert ours.encode(TEXT).tolist() == expected[1:]
    batch = theirs([TEXT, "short"], padding=True, padding_side="left", return_tensors="pt")
    model = AutoModelForCausalLM.from_pretrained(folder)
    alone = theirs("short", return_tensors="pt")
    together = model(**batch).logits[1, -1]
    torch.testing.assert_close(together, model(**alone).logits[0, -1], rtol=1e-4, atol=1e-5)


def test_the_command_and_the_library_generate_the_same(folder):
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )
    inputs = tokenizer("Fellow-citizens", return_tensors="pt")
    theirs = model.generate(**inputs, max_new_tokens=10, do_sample=False)
    length = inputs["input_ids"].shape[1]
    generator, our_tokenizer = open_generator(folder, device="cpu")
    settings = {"max_new_tokens": 10, "sampling": Sampling(None), "seed": 0}
    ours = stream(generator, our_tokenizer, "Fellow-citizens", write=lambda _: None, **settings)
    assert theirs[0, length:].tolist() == ours


def test_the_end_of_text_is_the_folders(folder):
    GenerationConfig(eos_token_id=[7, 9]).save_pretrained(folder)
    assert open_generator(folder, device="cpu")[0].generation_config.eos_token_id == [7, 9]


def test_bos_is_added_where_the_tokenizer_does(folder):
    assert open_model(folder, device="cpu")[1].adds_bos
    inner = AutoTokenizer.from_pretrained(folder)
    inner.add_bos_token = False
    inner.save_pretrained(folder)
    assert not open_model(folder, device="cpu")[1].adds_bos
    (folder / "tokenizer_config.json").unlink()
    assert open_model(folder, device="cpu")[1].adds_bos
