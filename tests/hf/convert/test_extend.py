"""Extended models in stock transformers, and the words of config.json in both directions."""

import json
from importlib import util
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from gatelm.config import ConfigError
from gatelm.hf.convert.checkpoint import read_source
from gatelm.hf.convert.convert import ConvertOptions, convert
from gatelm.hf.convert.extend import extend_model
from gatelm.hf.load import open_model
from gatelm.longcontext.extend import ExtendRequest
from gatelm.longcontext.scaling import scaled
from gatelm.nn.model import Decoder
from gatelm.train.saving.export import load_model
from helpers import random_ids

_spec = util.spec_from_file_location("converting", Path(__file__).parents[1] / "converting.py")
assert _spec is not None
assert _spec.loader is not None
models = util.module_from_spec(_spec)
_spec.loader.exec_module(models)

ORIGINAL, LENGTH = 32, 80
METHODS = ("linear", "ntk", "dynamic_ntk", "yarn", "yarn_rotations", "llama3")
LONG_FACTORS = [1.0, 1.0, 1.2, 1.5, 1.9, 2.5, 3.0, 4.0]
LONGROPE = {"short_factors": [1.0] * 8, "long_factors": LONG_FACTORS}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders of transformers by name, whose context is `ORIGINAL`."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = models.save(name, tmp_path_factory.mktemp(name))
            change(made[name], max_position_embeddings=ORIGINAL)
        return made[name]

    return get


def change(folder, drop=(), **changes):
    path = folder / "config.json"
    tree = {k: v for k, v in json.loads(path.read_text()).items() if k not in drop}
    path.write_text(json.dumps({**tree, **changes}))
    return folder


def copy(saved, name, tmp_path, **changes):
    folder = tmp_path / f"copy-of-{name}"
    convert(saved(name), folder, ConvertOptions(to=name, verify=False))
    return change(folder, drop=("rope_parameters", "rope_scaling", "rope_theta"), **changes)


def tokens(length=LENGTH):
    return random_ids(models.VOCAB, 2, length, seed=3, special=3)


def stock(folder, text):
    """Logits of transformers' own class for the folder."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert type(model).__module__.startswith("transformers.")
    with torch.no_grad():
        return model(text, use_cache=False).logits


def ours(cfg, state, text):
    model = Decoder(cfg).eval()
    model.load_state_dict(state)
    with torch.no_grad():
        return model(text)


@pytest.mark.parametrize("method", [*METHODS, "longrope"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_transformers_gives_our_logits_beyond_the_original_length(family, method, saved, tmp_path):
    source = read_source(saved(family))
    settings = LONGROPE if method == "longrope" else {}
    request = ExtendRequest(to_tokens=4 * ORIGINAL, method=method, settings=settings)
    extended = extend_model(saved(family), tmp_path / "out", request)
    assert extended is not None
    found = stock(tmp_path / "out", tokens())
    torch.testing.assert_close(
        found, ours(extended.extension.cfg, source.state, tokens()), atol=2e-4, rtol=2e-4
    )
    again = read_source(tmp_path / "out")
    torch.testing.assert_close(found, ours(again.cfg, again.state, tokens()), atol=2e-4, rtol=2e-4)
    unscaled = ours(source.cfg, source.state, tokens())
    assert float((found - unscaled).abs().max()) > 0.05
    if method != "longrope":
        assert extended.extension.cfg == scaled(source.cfg, method, 4.0, ORIGINAL)


@pytest.mark.parametrize(
    "name", ["mistral", "qwen2", "qwen3_5_text-quarter", "qwen3_next-dense", "lfm3", "afmoe"]
)
def test_other_families_read_what_is_written(name, saved, tmp_path):
    source = read_source(saved(name))
    request = ExtendRequest(to_tokens=2 * ORIGINAL, method="yarn")
    extended = extend_model(saved(name), tmp_path / "out", request)
    assert extended is not None
    found = open_model(tmp_path / "out", device="cpu")[0]
    logits = found.logits(found.observe(tokens(50)))
    expected = ours(extended.extension.cfg, source.state, tokens(50))
    torch.testing.assert_close(logits, expected, atol=5e-4, rtol=5e-4)


def test_a_folder_of_this_package_stays_one(tmp_path):
    folder = models.gatelm_folder(tmp_path / "ours")
    change(folder, max_position_embeddings=ORIGINAL)
    cfg = load_model(folder)[0].cfg
    extended = extend_model(folder, tmp_path / "out", ExtendRequest(2 * ORIGINAL, "yarn", base=1e6))
    model = load_model(tmp_path / "out")[0]
    rope = model.cfg.layer.mixer.rope
    assert (rope.base, rope.scaling.kind, rope.scaling.factor) == (1e6, "yarn", 2.0)
    assert rope.scaling.original_tokens == ORIGINAL
    tree = json.loads((tmp_path / "out" / "config.json").read_text())
    assert tree["max_position_embeddings"] == 2 * ORIGINAL
    assert ("rope base", "10000", "1e+06") in extended.extension.changes
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| Context | 64 tokens (32 before) |" in card
    assert "scaling: none -> yarn" in card
    assert cfg.layer.mixer.rope.scaling is None


def test_layers_with_positions_of_their_own_are_scaled_too(tmp_path):
    overrides = [
        {"layers": [1], "set": {"mixer.rope": {"base": 500.0, "pairs": "neighbours"}}},
    ]
    folder = models.gatelm_folder(tmp_path / "ours", models.gatelm_tree(layer_overrides=overrides))
    change(folder, max_position_embeddings=ORIGINAL)
    extend_model(folder, tmp_path / "out", ExtendRequest(2 * ORIGINAL, "linear"))
    layers = load_model(tmp_path / "out")[0].cfg.layers()
    assert [layer.mixer.rope.base for layer in layers] == [10_000.0, 500.0]
    assert [layer.mixer.rope.pairs for layer in layers] == ["halves", "neighbours"]
    assert [layer.mixer.rope.scaling.factor for layer in layers] == [2.0, 2.0]


def test_more_of_the_same_scaling_goes_from_the_original_length(saved, tmp_path):
    extend_model(saved("llama"), tmp_path / "a", ExtendRequest(2 * ORIGINAL, "yarn"))
    again = extend_model(tmp_path / "a", tmp_path / "b", ExtendRequest(4 * ORIGINAL, "yarn"))
    direct = extend_model(saved("llama"), tmp_path / "c", ExtendRequest(4 * ORIGINAL, "yarn"))
    assert again.extension.cfg == direct.extension.cfg
    with pytest.raises(ConfigError, match=r"has a scaling already \(yarn, factor 2\)"):
        extend_model(tmp_path / "a", tmp_path / "d", ExtendRequest(4 * ORIGINAL, "linear"))
    replaced = ExtendRequest(4 * ORIGINAL, "linear", existing="replace")
    assert extend_model(tmp_path / "a", tmp_path / "d", replaced) is not None


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (ExtendRequest(ORIGINAL, "yarn"), "was trained on 32 tokens already"),
        (ExtendRequest(64, "yarrn"), "did you mean 'yarn'?"),
        (ExtendRequest(64, "longrope"), "needs long_factors and short_factors (8 numbers each)"),
        (ExtendRequest(64, "linear", settings={"beta_fast": 3}), "unknown key 'beta_fast'"),
        (ExtendRequest(64, "none", settings={"beta_fast": 3}), "has no settings"),
        (
            ExtendRequest(64, "longrope", settings={"short_factors": [1.0], "long_factors": [1.0]}),
            "short_factors: 1 factors, but 8 pairs",
        ),
    ],
)
def test_mistakes_are_one_sentence_and_write_nothing(request_, expected, saved, tmp_path):
    with pytest.raises(ConfigError) as raised:
        extend_model(saved("llama"), tmp_path / "out", request_)
    assert expected in str(raised.value)
    assert not any(tmp_path.iterdir())


def test_a_model_without_rotary_positions_is_refused(tmp_path):
    folder = models.gatelm_folder(tmp_path / "ours", models.gatelm_tree(mixer={"rope": None}))
    with pytest.raises(ConfigError, match="no rotary positions"):
        extend_model(folder, tmp_path / "out", ExtendRequest(64))
    rotated_tensors = models.gatelm_folder(tmp_path / "rotated_tensors")
    with pytest.raises(ConfigError, match="does not state its context"):
        extend_model(rotated_tensors, tmp_path / "out", ExtendRequest(64))


YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
THETA = {"rope_theta": 5e4}
SPELLINGS = {
    "rope_parameters": {"rope_parameters": {"rope_type": "yarn", **YARN, **THETA}},
    "rope_scaling with type": {"rope_scaling": {"type": "yarn", **YARN}, **THETA},
    "both names of the kind": {
        "rope_scaling": {"type": "yarn", "rope_type": "yarn", **YARN},
        **THETA,
    },
    "both dicts": {
        "rope_scaling": {"type": "yarn", **YARN},
        "rope_parameters": {"rope_type": "yarn", **YARN, **THETA},
    },
    "original length outside": {
        "rope_scaling": {"type": "yarn", "factor": 4.0},
        "original_max_position_embeddings": 32,
        **THETA,
    },
    "no factor": {
        "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 32, "factor": None},
        **THETA,
    },
    "a note": {"rope_scaling": {"type": "yarn", "finetuned": True, **YARN}, **THETA},
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_in_circulation_means_the_same(name, saved, tmp_path):
    folder = copy(saved, "llama", tmp_path, max_position_embeddings=128, **SPELLINGS[name])
    rope = read_source(folder).cfg.layer.mixer.rope
    assert rope.base == 5e4
    assert rope.scaling.tree() == {
        **rope.scaling.tree(),
        "kind": "yarn",
        "factor": 4.0,
        "original_tokens": 32,
        "ramp": "index",
        "bounds": "whole",
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"rope_scaling": {"type": "yarn", "rope_type": "linear", **YARN}},
            "type is 'yarn' and rope_type 'linear'",
        ),
        (
            {
                "rope_scaling": {"type": "yarn", **YARN},
                "rope_parameters": {"rope_type": "yarn", **YARN, "factor": 2.0},
            },
            "factor is 4.0 in rope_scaling, but 2.0 in rope_parameters",
        ),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "rope_theta": 5e4},
            "rope_theta is 50000.0, but 10000.0 in the rotary parameters",
        ),
        (
            {
                "rope_scaling": {"type": "yarn", **YARN},
                "original_max_position_embeddings": 64,
            },
            "original_max_position_embeddings is 64, but 32",
        ),
        (
            {"rope_scaling": {"type": "dynamic", **YARN}},
            "transformers grows the base from max_position_embeddings (128) on",
        ),
        ({"rope_scaling": {"type": "yarn", **YARN, "alpha": 3}}, "'yarn' with alpha: not known"),
        ({"rope_scaling": {"type": "cubic", "factor": 2.0}}, "rope_type 'cubic' cannot"),
        ({"rope_scaling": [1]}, "rope_scaling: must be an object"),
    ],
)
def test_contradictions_are_refused_by_name(changes, expected, saved, tmp_path):
    changes = {**THETA, **changes}
    folder = copy(saved, "llama", tmp_path, max_position_embeddings=128, **changes)
    with pytest.raises(ConfigError) as raised:
        read_source(folder)
    assert expected in str(raised.value)


def test_what_only_seems_to_count_is_warned_of(saved, tmp_path):
    scaling = {"type": "yarn", **YARN}
    folder = copy(saved, "llama", tmp_path, max_position_embeddings=96, rope_scaling=scaling)
    with pytest.warns(UserWarning, match="factor 4 is not max_position_embeddings"):
        assert read_source(folder).cfg.layer.mixer.rope.scaling.factor == 4.0
    change(folder, max_position_embeddings=128, rope_scaling={**scaling, "mscale": 0.7})
    with pytest.warns(UserWarning, match="mscale counts only together with its twin"):
        assert read_source(folder).cfg.layer.mixer.rope.amplitude > 1.1
    more = {"mscale": 0.7, "mscale_all_dim": 1.0, "attention_factor": 1.0}
    change(folder, rope_scaling={**scaling, **more})
    with pytest.warns(UserWarning, match="attention_factor counts; mscale and mscale_all_dim"):
        assert read_source(folder).cfg.layer.mixer.rope.amplitude == 1.0
