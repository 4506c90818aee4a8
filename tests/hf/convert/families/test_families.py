"""Each family alone: its config read and written, its refusals, its names of tensors, its facts."""

import re
from importlib import util
from pathlib import Path

import pytest
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoConfig

import gatelm
from gatelm.config import ConfigError
from gatelm.hf.convert.families.registry import FORMATS, recognise, table
from gatelm.hf.convert.formats.fold import RefusedError, fold
from gatelm.hf.convert.formats.hybrid import split_experts
from gatelm.hf.convert.formats.read import read_config
from gatelm.hf.convert.formats.write import write_config
from gatelm.hf.convert.planner import plan
from gatelm.hf.probe.families import gate_layout

_spec = util.spec_from_file_location("converting", Path(__file__).parents[2] / "converting.py")
assert _spec is not None
assert _spec.loader is not None
models = util.module_from_spec(_spec)
_spec.loader.exec_module(models)

ONE_EACH = {family: name for name, (family, _) in reversed(models.SOURCES.items())}


def tree_of(name, **changes):
    """The config.json of a source, changed where its text model is described."""
    family, own = models.SOURCES[name]
    kind = "qwen3" if family == "paper" else family
    if kind not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {family}")
    settings = {**models.SIZES, **own}
    if family == "step3p7":
        text = {**settings, "mlp_layer_types": ["dense"] * 2, **changes}
        return {"model_type": kind, "text_config": text}
    filled = settings if family == "paper" else AutoConfig.for_model(kind, **settings).to_dict()
    return {**filled, "model_type": kind, **changes}


def saved_tensors(model, folder):
    """The tensors of a model under the names that transformers writes."""
    model.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def read(tree):
    return read_config(tree, recognise(tree, "test"), "test")


def test_every_family_has_a_source():
    assert ONE_EACH.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", models.SOURCES)
def test_a_config_is_read_written_and_read_as_the_same_model(name):
    tree = tree_of(name)
    fmt = recognise(tree, "test")
    assert fmt.name == models.SOURCES[name][0]
    cfg = read(tree)
    if not fmt.written or name == "lfm3-proportional":
        with pytest.raises(RefusedError):
            fold(cfg, {}, fmt)
        return
    folded = fold(cfg, {}, fmt)
    assert folded.notes == []
    assert folded.cfg == cfg
    written = write_config(cfg, fmt, {}, "float32")
    assert list(written) == sorted(written)
    assert recognise(written, "test") is fmt
    assert read(written) == cfg


@pytest.mark.parametrize("name", models.SOURCES)
def test_names_and_shapes_of_tensors_are_those_of_transformers(name, tmp_path):
    tree = tree_of(name)
    fmt, model = recognise(tree, "test"), models.build(name)
    cfg = read(tree)
    ours = {n: s for piece in fmt.pieces(cfg, tree, fmt.layout) for n, s in piece.shapes.items()}
    saved = split_experts(saved_tensors(model, tmp_path))
    dropped = {n for n in saved if any(re.search(p, n) for p in fmt.left_out)}
    if cfg.head == "tied":
        dropped.add("lm_head.weight")
    assert ours == {n: tuple(t.shape) for n, t in saved.items() if n not in dropped}
    assert bool(dropped - {"lm_head.weight"}) == (fmt.name == "step3p7")


@pytest.mark.parametrize("family", FORMATS)
def test_an_unknown_key_is_named(family):
    tree = tree_of(ONE_EACH[family], zz_top=1)
    with pytest.raises(ConfigError, match="not known here, so its effect is not either: zz_top"):
        read(tree)


@pytest.mark.parametrize("family", FORMATS)
def test_a_key_of_another_wrong_type_is_one_sentence(family):
    with pytest.raises(ConfigError) as caught:
        read(tree_of(ONE_EACH[family], num_hidden_layers="two"))
    assert str(caught.value).startswith("test: ")
    assert "num_hidden_layers" in str(caught.value)


REFUSED = [
    ("llama", {"mlp_bias": True}, "mlp_bias: a feed-forward network with biases"),
    ("llama", {"hidden_act": "mish"}, "hidden_act 'mish' cannot be expressed"),
    ("qwen2", {"use_mrope": True}, "use_mrope true cannot be expressed"),
    ("qwen3_5_text", {"attention_bias": True}, "Qwen3.5 text with biases cannot be expressed"),
    ("qwen3_5_text", {"attn_output_gate": False}, "attn_output_gate false"),
    ("qwen3_5_text-hybrid", {"hidden_act": "gelu"}, "of Gated DeltaNet's convolution"),
    ("qwen3_5_text-hybrid", {"output_gate_type": "sigmoid"}, "output_gate_type 'sigmoid'"),
    ("qwen3_next", {"use_sliding_window": True}, "the family's code has no windows"),
    ("paper-element", {"use_qk_norm": False}, "only models with QK-norm can be checked"),
    ("paper-head", {"qkv_bias": True}, "the release has no biases"),
    ("paper-head", {"attention_bias": True}, "with biases cannot be expressed"),
    ("afmoe", {"num_dense_layers": 1}, "layers 1 to 1 are mixtures of experts"),
    ("afmoe-mup", {"tie_word_embeddings": True}, "which cannot be tied then"),
    ("lfm3", {"use_sandwich_norm": False}, "use_sandwich_norm false is not read"),
    ("lfm3", {"layer_types": ["conv", "full_attention"]}, "layer 0 is of type conv"),
    ("step3p7", {"mlp_layer_types": ["dense", "sparse"]}, "layers 1 ... are mixtures of experts"),
    ("step3p7", {"mlp_bias": True}, "mlp_bias or use_bidirectional_attention is set"),
    ("step3p7", {"query_pre_attn_scalar": 3}, "query_pre_attn_scalar other than head_dim"),
    ("step3p7", {"gating": "per-element"}, "Step's code computes per-head gates only"),
]


@pytest.mark.parametrize(("name", "changes", "words"), REFUSED)
def test_settings_that_a_family_refuses(name, changes, words):
    with pytest.raises(ConfigError) as caught:
        read(tree_of(name, **changes))
    assert words in str(caught.value)


EXPRESSED = {
    "llama": (models.gatelm_tree([], {"qk_norm": None}), ["llama", "mistral"]),
    "biases": (models.gatelm_tree([], {"qk_norm": None, "bias": "all"}), ["llama"]),
    "qkv": (models.gatelm_tree([], {"qk_norm": None, "bias": "qkv"}), ["qwen2"]),
    "window": (
        models.gatelm_tree([], {"qk_norm": None, "window_tokens": 7}),
        ["mistral"],
    ),
    "qk-norm": (models.gatelm_tree([]), ["qwen3", "paper", "qwen3_5_text", "qwen3_next"]),
    "head": (models.gatelm_tree(["sdpa-head"]), ["paper", "qwen3_5_text", "qwen3_next"]),
    "sandwich": (
        models.gatelm_tree(
            ["sdpa-head"], {"window_tokens": 7}, layer={"norm_placement": "sandwich"}
        ),
        ["afmoe", "lfm3"],
    ),
    "experts": (models.gatelm_tree([], layer={"ffn": models.moe(shared=False)}), ["qwen3_moe"]),
    "hybrid": (models.hybrid_tree(), ["qwen3_5_text", "qwen3_next"]),
    "hybrid-experts": (models.hybrid_tree(models.moe()), ["qwen3_5_moe_text", "qwen3_next"]),
}


@pytest.mark.parametrize("name", EXPRESSED)
def test_the_families_that_can_express_a_model(name):
    tree, expected = EXPRESSED[name]
    options = plan(gatelm.ModelConfig.parse(tree, "model"))
    assert {o.format for o in options if o.possible} == {"gatelm", *expected}
    assert all(o.why_not for o in options if not o.possible)


@pytest.mark.parametrize("family", FORMATS)
def test_facts_of_a_family_are_of_its_format(family):
    fmt = FORMATS[family]
    assert fmt.engines()
    assert {fact.format for fact in fmt.engines()} == {family}
    assert fmt.notes


@pytest.mark.parametrize(
    "name", ["qwen3_5_text", "qwen3_next", "qwen3_5_moe_text", "paper-element"]
)
def test_the_probe_knows_the_same_layout(name):
    layout = gate_layout(models.build(name).config)
    assert layout is not None
    assert layout.packing == FORMATS[models.SOURCES[name][0]].layout


def test_the_table_of_the_document_is_that_of_the_families():
    document = Path(gatelm.__file__).parents[2] / "docs" / "convert.md"
    assert "\n".join(table()) in document.read_text(encoding="utf-8")
