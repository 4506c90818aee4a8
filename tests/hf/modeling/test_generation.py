import pytest
import torch
from transformers import AutoModelForCausalLM

from gatelm.config import ConfigError
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.hf.modeling.generation import Sampling, _Streamer, open_generator, prompt_ids, stream
from gatelm.hf.probe.prefill import open_prefill
from gatelm.hf.probe.tokenizer import GatelmTokenizer
from gatelm.inference.prefill import continue_greedily
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import export_model


def export(folder, tokenizer, vocab_size=258):
    layer = {"mixer": {"num_heads": 2}, "ffn": {"ffn_dim": 16}, "gates": ["sdpa-head"]}
    tree = {"vocab_size": vocab_size, "hidden_dim": 16, "num_layers": 2, "init": {"std": 0.4}}
    decoder = Decoder(ModelConfig.parse({**tree, "layer": layer}))
    init_weights(decoder, 0)
    export_model(folder, decoder, tokenizer, {})
    return decoder.eval()


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generation") / "model"
    decoder = export(folder, byte_tokenizer())
    return decoder, *open_generator(folder, device="cpu")


def run(opened, **settings):
    _, model, tokenizer = opened
    pieces = []
    given = {"max_new_tokens": 12, "sampling": Sampling(), "seed": 0, **settings}
    ids = stream(model, tokenizer, "To the Congress", write=pieces.append, **given)
    return ids, pieces


def test_greedy_text_is_the_likeliest_token_each_time(opened):
    decoder, _, tokenizer = opened
    ids, pieces = run(opened, sampling=Sampling(temperature=None))
    row = prompt_ids(tokenizer, "To the Congress")
    assert row[0] == tokenizer.bos_id
    for token in ids:
        with torch.no_grad():
            assert token == decoder(torch.tensor([row]))[0, -1].argmax()
        row.append(token)
    assert "".join(pieces) == tokenizer.decode(ids)


def test_the_seed_decides_and_leaves_torchs_generator_alone(opened):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one = run(opened, seed=1)
    assert torch.equal(torch.rand(1), expected)
    assert run(opened, seed=1) == one
    assert run(opened, seed=2)[0] != one[0]
    assert "".join(one[1]) == opened[2].decode(one[0])


@pytest.fixture
def padded(tmp_path):
    """A model with rows of the vocabulary that have no token, one of which is the likeliest."""
    decoder = export(tmp_path / "plain", byte_tokenizer(), vocab_size=264)
    with torch.no_grad():
        decoder.embedding.weight[258:] *= 40
    export_model(tmp_path / "padded", decoder, byte_tokenizer(), {})
    return tmp_path / "padded", decoder


def test_ids_without_a_token_are_never_chosen(padded):
    folder, decoder = padded
    model, tokenizer = open_generator(folder, device="cpu")
    row = torch.tensor([prompt_ids(tokenizer, "To the Congress")])
    with torch.no_grad():
        assert decoder(row)[0, -1].argmax() >= 258
    for sampling in (Sampling(None), Sampling(5.0)):
        ids, pieces = run((None, model, tokenizer), sampling=sampling)
        assert ids
        assert max(ids) < 258
        assert "".join(pieces) == tokenizer.decode(ids) != ""
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    for settings in ({"do_sample": False}, {"do_sample": True, "temperature": 5.0}):
        assert int(loaded.generate(row, max_new_tokens=8, **settings).max()) < 258
    reader, inner, ends = open_prefill(folder, device="cpu")
    unused = inner.unused_ids(reader.vocab_size)
    assert unused == list(range(258, 264))
    found = continue_greedily(reader, row[0], max_new_tokens=8, ends=ends, unused_ids=unused)
    assert found
    assert max(found) < 258


def test_a_narrow_choice_is_greedy(opened):
    greedy = run(opened, sampling=Sampling(temperature=None))
    assert run(opened, sampling=Sampling(1.0, top_p=1e-6)) == greedy
    assert run(opened, sampling=Sampling(1e-4)) == greedy
    assert run(opened, sampling=Sampling(3.0)) != greedy


def test_it_ends_at_the_end_of_text(opened):
    _, model, tokenizer = opened
    greedy, _ = run(opened, sampling=Sampling(temperature=None))
    eos = model.generation_config.eos_token_id
    assert eos == 257
    model.generation_config.eos_token_id = greedy[3]
    try:
        ids, pieces = run(opened, sampling=Sampling(temperature=None))
    finally:
        model.generation_config.eos_token_id = eos
    end = greedy.index(greedy[3])
    assert ids == greedy[: end + 1]
    assert "".join(pieces) == tokenizer.decode(greedy[:end])


def test_characters_are_written_whole():
    pieces = []
    streamer = _Streamer(GatelmTokenizer(byte_tokenizer()), {257}, pieces.append)
    streamer.put(torch.tensor([[256, 65]]))
    for byte in "aé€".encode():
        streamer.put(torch.tensor([byte]))
    assert pieces == ["a", "é", "€"]
    streamer.put(torch.tensor([0xE2]))
    streamer.put(torch.tensor([257]))
    streamer.end()
    assert "".join(pieces) == "aé€\ufffd"


def test_a_model_without_a_tokenizer_is_refused(tmp_path):
    export(tmp_path / "model", None, vocab_size=20)
    with pytest.raises(ConfigError, match="has no tokenizer"):
        open_generator(tmp_path / "model")


def test_an_empty_prompt_needs_a_bos(opened):
    tokenizer = GatelmTokenizer(byte_tokenizer())
    assert prompt_ids(tokenizer, "") == [256]
    tokenizer.bos_id = None
    with pytest.raises(ConfigError, match="give some text"):
        prompt_ids(tokenizer, "")
