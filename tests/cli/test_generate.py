import shutil

import pytest
from transformers import GPT2Config, GPT2LMHeadModel
from typer.testing import CliRunner

from gatelm.cli.main import app
from gatelm.config import ConfigError
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import export_model, load_model, write_tokenizer


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    layer = {"mixer": {"num_heads": 2}, "ffn": {"ffn_dim": 16}, "gates": ["sdpa-element"]}
    tree = {"vocab_size": 258, "hidden_dim": 16, "num_layers": 1, "init": {"std": 0.4}}
    decoder = Decoder(ModelConfig.parse({**tree, "layer": layer}))
    init_weights(decoder, 0)
    folder = tmp_path_factory.mktemp("run")
    export_model(folder / "model", decoder, byte_tokenizer(), {})
    return str(folder)


def invoke(*args, **kwargs):
    return CliRunner().invoke(app, ["generate", *args], **kwargs)


def test_a_run_folder_continues_a_prompt(run_folder):
    options = ("--max-new-tokens", "9", "--seed", "3")
    first = invoke(run_folder, "--prompt", "We the people", *options)
    assert first.exit_code == 0, first.output
    assert first.stdout.startswith("We the people")
    assert len(first.stdout) > len("We the people\n")
    assert (
        invoke(run_folder, "--prompt", "-", *options, input="We the people").stdout == first.stdout
    )
    assert invoke(run_folder, "--prompt", "We the people", *options[:2]).stdout != first.stdout
    greedy = invoke(run_folder, "--prompt", "We the people", *options, "--greedy").stdout
    assert (
        greedy == invoke(run_folder, "--prompt", "We the people", *options[:2], "--greedy").stdout
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--temperature", "0"), "--greedy takes the likeliest"),
        (("--top-p", "1.5"), "--top-p"),
        (("--dtype", "float33"), "did you mean"),
    ],
)
def test_mistakes_are_one_sentence(run_folder, options, message):
    result = invoke(run_folder, "--prompt", "x", *options)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_a_place_without_a_model(tmp_path):
    result = invoke(str(tmp_path), "--prompt", "x")
    assert isinstance(result.exception, ConfigError)
    assert "no model here" in str(result.exception)


@pytest.fixture(scope="module")
def gpt2_folder(tmp_path_factory):
    """A model with 24 learned positions."""
    config = GPT2Config(
        vocab_size=258, n_embd=16, n_layer=1, n_head=2, n_positions=24, eos_token_id=257
    )
    folder = tmp_path_factory.mktemp("gpt2")
    GPT2LMHeadModel(config).save_pretrained(folder)
    write_tokenizer(folder, byte_tokenizer())
    return folder


def test_learned_positions_end_a_text(gpt2_folder):
    given = invoke(str(gpt2_folder), "--prompt", "To the Congress", "--max-new-tokens", "99")
    assert given.exit_code == 0, given.output
    result = invoke(str(gpt2_folder), "--prompt", "To the Congress of the United States")
    assert isinstance(result.exception, ConfigError)
    assert "38 tokens, but GPT2LMHeadModel has learned 24 positions" in str(result.exception)


def test_an_end_of_text_that_is_no_id(gpt2_folder, tmp_path):
    folder = shutil.copytree(gpt2_folder, tmp_path / "copy")
    (folder / "generation_config.json").write_text('{"eos_token_id": "x"}')
    result = invoke(str(folder), "--prompt", "x")
    assert isinstance(result.exception, ConfigError)
    assert "eos_token_id 'x': give the id of a token" in str(result.exception)


def test_a_prompt_beyond_the_stated_context_is_told(run_folder, tmp_path):
    model, tokenizer = load_model(run_folder)
    export_model(tmp_path / "short", model, tokenizer, {}, context_tokens=8)
    options = ("--prompt", "To the Congress", "--max-new-tokens", "2")
    assert "note:" not in invoke(run_folder, *options).output
    told = invoke(str(tmp_path / "short"), *options)
    assert told.exit_code == 0
    assert "the prompt has 16 tokens, but the model states a context of 8" in told.output


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--temperature", "1e-40", "--temperature: a number of at least 0.0001"),
        ("--temperature", "inf", "--temperature: a number of at least 0.0001"),
        ("--temperature", "nan", "--temperature: a number of at least 0.0001"),
        ("--seed", "9" * 60, "Invalid value for '--seed'"),
        ("--seed", "-1", "Invalid value for '--seed'"),
    ],
)
def test_numbers_beyond_what_sampling_takes(option, value, sentence):
    result = CliRunner().invoke(app, ["generate", "m", "--prompt", "x", option, value])
    assert result.exit_code
    assert sentence in result.output + str(result.exception)
