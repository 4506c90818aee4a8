import pytest
from transformers import CONFIG_MAPPING

from gatelm.config import ConfigError
from gatelm.hf.convert.foreign import check_foreign_config

GOOD = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "eos_token_id": [2, 3],
    "pad_token_id": -1,
    "sliding_window": None,
    "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0},
}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0}


def message(tree):
    with pytest.raises(ConfigError) as caught:
        check_foreign_config(tree, "config.json")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_possible_values_pass():
    check_foreign_config(GOOD, "config.json")
    check_foreign_config({**GOOD, "num_key_value_heads": None, "rope_parameters": None}, "here")
    nested = dict.fromkeys(("full_attention", "sliding_attention"), GOOD["rope_parameters"])
    check_foreign_config({**GOOD, "rope_parameters": nested, "rope_theta": 5.0}, "here")


@pytest.mark.parametrize("value", [0, -5, 2.5, True, "many", float("nan"), float("inf"), {}])
@pytest.mark.parametrize("key", ["max_position_embeddings", "hidden_size", "num_attention_heads"])
def test_counts_are_whole_and_above_zero(key, value):
    told = message({**GOOD, key: value})
    assert told.startswith(f"config.json: {key}: must be a whole number from 1 on, not ")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rms_norm_eps": 2.5}, "rms_norm_eps: must be a number from 0 to below 1, not 2.5"),
        ({"norm_eps": -1e-6}, "norm_eps: must be a number from 0"),
        ({"rope_theta": 0, "rope_parameters": None}, "rope_theta: must be a number above 1, not 0"),
        ({"sliding_window": -1}, "sliding_window: must be a whole number from 0 on"),
        ({"attention_dropout": 1.5}, "attention_dropout: must be a number from 0 to 1"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor: must be a number above 0"),
        ({"eos_token_id": "x"}, "eos_token_id: must be a token's number"),
        ({"bos_token_id": [1, True]}, "bos_token_id: must be a token's number"),
        ({"num_key_value_heads": [2, 0]}, "num_key_value_heads: must be a whole number"),
        ({"text_config": {"head_dim": 0}}, "config.json: text_config: head_dim: must be"),
    ],
)
def test_an_impossible_value_is_named(changes, words):
    assert words in message({**GOOD, **changes})


@pytest.mark.parametrize(
    ("rope", "words"),
    [
        ({**GOOD["rope_parameters"], "factor": -1}, "factor: must be a number above 0, not -1"),
        ({"rope_theta": None}, "rope_theta is null"),
        ({"rope_type": [], "rope_theta": 1e4}, "rope_type: must be a name, not []"),
        ({"rope_theta": 5e4}, "rope_theta is 10000.0, but 50000.0 in the rotary parameters"),
        ({**LONG, "short_factor": [1.0, -2.0]}, "short_factor: must be a number above 0, not -2.0"),
        ({**LONG, "original_max_position_embeddings": 0}, "original_max_position_embeddings: must"),
        ("linear", "rope_parameters: must be an object, not 'linear'"),
        ({"full_attention": {"rope_theta": -1}, "sliding_attention": {}}, "above 1, not -1"),
    ],
)
def test_an_impossible_rotary_setting_is_named(rope, words):
    assert words in message({**GOOD, "rope_parameters": rope})


def test_the_old_spelling_is_checked_too():
    tree = {key: value for key, value in GOOD.items() if key != "rope_parameters"}
    told = message({**tree, "rope_scaling": {"type": "linear", "factor": -1}})
    assert "factor: must be a number above 0, not -1" in told


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2", "qwen3_next", "lfm3", "phi3"])
def test_the_defaults_of_transformers_pass(family):
    if family not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {family}")
    check_foreign_config(CONFIG_MAPPING[family]().to_dict(), family)
