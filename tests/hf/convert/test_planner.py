from importlib import util
from pathlib import Path

import pytest
from transformers import CONFIG_MAPPING

from gatelm.hf.convert.families.registry import FORMATS, GATELM, recognise
from gatelm.hf.convert.formats.fold import fold
from gatelm.hf.convert.formats.read import read_config
from gatelm.hf.convert.formats.write import write_config
from gatelm.hf.convert.planner import facts, plan, targets_that_do
from gatelm.nn.model import ModelConfig
from gatelm.presets import model_preset

_spec = util.spec_from_file_location("converting", Path(__file__).parents[1] / "converting.py")
assert _spec is not None
assert _spec.loader is not None
models = util.module_from_spec(_spec)
_spec.loader.exec_module(models)


def config(*args, **kwargs):
    return ModelConfig.parse(models.gatelm_tree(*args, **kwargs), "model")


def test_formats_that_can_express_a_model():
    assert targets_that_do(config()) == ["gatelm", "qwen3_5_text", "qwen3_next", "paper"]
    assert targets_that_do(config(["value"])) == ["gatelm"]
    assert targets_that_do(config([], {"qk_norm": None})) == ["gatelm", "llama", "mistral"]
    assert "qwen3" in targets_that_do(config([]))
    untied = config(mixer={"rope": {"partial_factor": 0.5}}, head="untied")
    assert targets_that_do(untied) == ["gatelm", "qwen3_5_text", "qwen3_next"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"mixer.out_norm": None}, "without an output norm"),
        ({"gates": ["sdpa-element"]}, "gates other than sdpa-silu-gate"),
        ({"gates": []}, "gates other than sdpa-silu-gate"),
        ({"mixer.conv_tokens": 2}, "Gated DeltaNet layers that differ"),
        ({"ffn": {"kind": "none"}}, "ffn.kind is none"),
        ({"ffn": models.moe()}, "mixtures of experts"),
        ({"mixer": {"kind": "delta", "num_heads": 4}}, "Gated DeltaNet layers that differ"),
    ],
)
def test_why_a_hybrid_cannot_be_written(change, why):
    tree = models.hybrid_tree()
    tree["layer_overrides"] = [*tree["layer_overrides"], {"layers": [2], "set": change}]
    options = {option.format: option for option in plan(ModelConfig.parse(tree, "model"))}
    assert any(why in reason for reason in options["qwen3_5_text"].why_not)
    assert not options["qwen3_5_text"].possible
    assert any("mixer.kind delta" in reason for reason in options["llama"].why_not)


def test_settings_that_no_format_has_a_word_for_are_refused():
    options = {o.format: o for o in plan(config(mixer={"window_tokens": 7, "first_tokens": 2}))}
    why = options["qwen3"].why_not
    assert any("mixer.first_tokens is set" in reason for reason in why)


def test_an_option_says_why_not_and_what_is_done():
    options = {option.format: option for option in plan(config(["sdpa-two-sigmoid"]))}
    assert any("no gates" in why for why in options["llama"].why_not)
    assert "2 sigmoid as sigmoid: W_o doubled" in options["qwen3_5_text"].steps
    assert not options["llama"].engines
    assert {f.engine for f in options["qwen3_next"].engines} >= {"vLLM", "SGLang", "llama.cpp"}


@pytest.mark.parametrize("fact", facts(), ids=lambda f: f"{f.engine}-{f.format}")
def test_every_fact_has_a_reason_and_what_was_run_is_what_tests_run(fact):
    assert fact.why
    assert fact.format in (GATELM, *FORMATS)
    assert fact.source or fact.verdict in ("not known", "does not load")
    if fact.how == "run":
        assert fact.engine in ("transformers", "gatelm")


def test_no_fact_is_said_twice():
    assert len({(f.engine, f.format) for f in facts()}) == len(facts())


@pytest.mark.parametrize("target", [n for n, f in FORMATS.items() if f.written])
def test_a_written_config_reads_back_as_the_folded_model(target):
    if FORMATS[target].model_type not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {target}")
    trees = [
        models.gatelm_tree(["sdpa-head"]),
        models.gatelm_tree([]),
        models.gatelm_tree([], {"qk_norm": None}),
        models.gatelm_tree([], {"qk_norm": None, "bias": "qkv"}),
        models.gatelm_tree(
            ["sdpa-head"],
            {"window_tokens": 7},
            layer={"norm_placement": "sandwich"},
            layer_overrides=[
                {"layers": [1], "set": {"mixer.window_tokens": None, "mixer.rope": None}}
            ],
        ),
        models.gatelm_tree(
            ["sdpa-head"], {"window_tokens": 7}, layer={"norm_placement": "sandwich"}
        ),
        models.gatelm_tree([], layer={"ffn": models.moe(shared=False)}),
        models.gatelm_tree(["sdpa-head"], layer={"ffn": models.moe()}),
        models.hybrid_tree(),
        models.hybrid_tree(models.moe(), head="untied"),
    ]
    configs = [ModelConfig.parse(tree, "model") for tree in trees]
    able = [cfg for cfg in configs if target in targets_that_do(cfg)]
    assert able
    for cfg in able:
        folded = fold(cfg, {}, FORMATS[target]).cfg
        tree = write_config(folded, FORMATS[target], {}, "float32")
        assert recognise(tree, "test").name == target
        assert read_config(tree, FORMATS[target], "test") == folded


def test_the_preset_of_qwen3_next_is_the_default_of_transformers():
    if "qwen3_next" not in CONFIG_MAPPING:
        pytest.skip("this transformers has no qwen3_next")
    fmt = FORMATS["qwen3_next"]
    folded = fold(model_preset("qwen3-next-80b-a3b"), {}, fmt).cfg
    tree = write_config(folded, fmt, {}, "bfloat16")
    assert read_config(tree, fmt, "test") == folded
    theirs = CONFIG_MAPPING["qwen3_next"]().to_dict()
    differ = {key for key, value in tree.items() if key in theirs and theirs[key] != value}
    # the published model's, which are not the defaults; dense layers, which it has none of
    assert differ <= {"rope_parameters", "intermediate_size", "architectures", "dtype"}
