import json
from importlib import util
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gatelm.config import ConfigError
from gatelm.hf.convert.checkpoint import read_source
from gatelm.hf.convert.convert import ConvertOptions, convert

_spec = util.spec_from_file_location("converting", Path(__file__).parents[1] / "converting.py")
assert _spec is not None
assert _spec.loader is not None
models = util.module_from_spec(_spec)
_spec.loader.exec_module(models)


@pytest.fixture
def folder(tmp_path):
    """A saved Qwen3.5 text model, untied."""
    return models.save("qwen3_5_text", tmp_path / "source")


def change_config(folder, drop=(), **changes):
    path = folder / "config.json"
    tree = {k: v for k, v in json.loads(path.read_text()).items() if k not in drop}
    path.write_text(json.dumps({**tree, **changes}))


def change_tensors(folder, drop=(), **changes):
    path = folder / "model.safetensors"
    tensors = {k: v for k, v in load_file(path).items() if k not in drop}
    save_file({**tensors, **changes}, path, metadata={"format": "pt"})


def message(folder, **settings):
    with pytest.raises(ConfigError) as caught:
        read_source(folder, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_unknown_tensor_is_listed(folder):
    change_tensors(folder, **{"model.layers.1.self_attn.sinks": torch.zeros(4)})
    assert "model.layers.1.self_attn.sinks: not known to this format" in message(folder)


def test_a_missing_tensor_is_listed(folder):
    change_tensors(folder, drop=["model.layers.0.self_attn.k_norm.weight"])
    assert "model.layers.0.self_attn.k_norm.weight: missing" in message(folder)


def test_a_tensor_of_another_shape_is_named(folder):
    change_tensors(folder, **{"model.norm.weight": torch.zeros(31)})
    assert "model.norm.weight: is [31], but config.json makes (32,)" in message(folder)


def test_unknown_config_keys_are_listed(folder):
    change_config(folder, attn_gate_power=2, zz_top=1)
    assert "attn_gate_power, zz_top" in message(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "bloom"}, "model_type 'bloom' cannot be converted; known: qwen3_5_text"),
        ({"model_type": "qwen3_5"}, "only the text model (qwen3_5_text)"),
        ({"layer_types": ["linear_attention", "full_attention"]}, "not known to this format"),
        ({"attention_bias": True}, "with biases cannot be expressed"),
        ({"hidden_act": "mish"}, "hidden_act 'mish'"),
        ({"attn_output_gate": False}, "attn_output_gate false cannot be expressed"),
        ({"quantization_config": {}}, "the weights are quantised"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4, "x": 1}},
            "rope_type 'linear' with x: not known here",
        ),
        ({"num_attention_heads": "four"}, "num_attention_heads"),
    ],
)
def test_what_a_config_asks_for_and_cannot_have(folder, changes, words):
    change_config(folder, **changes)
    assert words in message(folder)


def test_a_missing_partial_rotary_factor_means_a_quarter(folder):
    change_config(folder, drop=["rope_parameters", "partial_rotary_factor"])
    assert read_source(folder).cfg.layer.mixer.rope.partial_factor == 0.25


def test_a_key_that_only_other_engines_read_is_not_ignored(tmp_path):
    folder = models.save("llama", tmp_path / "llama")
    change_config(folder, rope_interleaved=False)
    read_source(folder)
    change_config(folder, rope_interleaved=True)
    assert "rope_interleaved true cannot be expressed" in message(folder)


def test_a_factor_that_the_family_ignores_is_refused(tmp_path):
    folder = models.save("llama", tmp_path / "llama")
    change_config(folder, rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5})
    assert "partial_rotary_factor 0.5: Llama ignores it" in message(folder)


def test_experts_that_the_folder_lacks_are_named(tmp_path):
    folder = models.save("qwen3_next", tmp_path / "source")
    change_config(folder, num_experts=4)
    told = message(folder)
    assert "experts.2.gate_proj.weight" in told
    assert "missing; nothing is converted" in told
    folder = models.save("afmoe", tmp_path / "afmoe")
    change_config(folder, num_dense_layers=1)
    assert "layers 1 to 1 are mixtures of experts" in message(folder)


def test_a_shared_expert_that_does_something_is_refused(tmp_path):
    folder = models.save("qwen3_next", tmp_path / "source")
    name = "model.layers.0.mlp.shared_expert.down_proj.weight"
    change_tensors(folder, **{name: torch.ones(32, 8)})
    assert f"{name}: is not zero" in message(folder)


def test_untied_without_a_head_is_a_contradiction(folder):
    change_tensors(folder, drop=["lm_head.weight"])
    assert "tie_word_embeddings is false, but lm_head.weight is missing" in message(folder)


def test_tied_with_another_head_is_a_contradiction(tmp_path):
    folder = models.save("llama-tied", tmp_path / "source")
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    change_tensors(folder, **{"lm_head.weight": embedding.clone()})
    assert "head.weight" not in read_source(folder).state
    change_tensors(folder, **{"lm_head.weight": embedding + 1})
    assert "tie_word_embeddings is true, but lm_head.weight differs" in message(folder)


def test_a_truncated_file_is_one_sentence(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "damaged or truncated" in message(folder)


def test_a_wrong_dtype_is_named(folder):
    change_tensors(folder, **{"model.norm.weight": torch.zeros(32, dtype=torch.int32)})
    assert "model.norm.weight has dtype int32" in message(folder)


def test_pickled_weights_and_missing_configs(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "config.json is missing" in message(tmp_path / "empty")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickled" in message(folder)
    (folder / "config.json").write_text("{")
    assert "cannot be read as JSON" in message(folder)


def test_shards_without_an_index_are_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file(tensors, folder / "b.safetensors")
    assert "several weight files, but no model.safetensors.index.json" in message(folder)


def test_a_layout_is_named_only_where_there_is_one(folder, tmp_path):
    assert "known packed layouts are" in message(folder, layout="per_layer")
    llama = models.save("llama", tmp_path / "llama")
    assert "Llama packs no gate" in message(llama, layout="per_kv_group")


def test_both_of_the_papers_flags_mean_headwise(tmp_path):
    folder = models.save("paper-head", tmp_path / "source")
    change_config(folder, elementwise_attn_output_gate=True)
    assert read_source(folder).cfg.layer.gates[0].granularity == "head"


def test_the_papers_missing_bias_key_is_no_bias_and_a_true_one_refused(tmp_path):
    folder = models.save("paper-head", tmp_path / "source")
    change_config(folder, drop=["qkv_bias"])
    assert read_source(folder).cfg.layer.mixer.bias == "none"
    change_config(folder, qkv_bias=True)
    assert "qkv_bias" in message(folder)


def test_a_row_of_a_packed_gate_lands_at_its_head(tmp_path):
    folder = models.save("paper-element", tmp_path / "source")
    # 4 heads of 16 channels in 2 groups: [2 x 16 queries | 2 x 16 gates] a group
    rows = torch.arange(128.0)[:, None].expand(128, 32).contiguous()
    change_tensors(folder, **{"model.layers.0.self_attn.q_proj.weight": rows})
    state = read_source(folder).state
    query = state["layers.0.attn.qkv.q.weight"][:, 0].view(4, 16)
    gate = state["layers.0.attn.gates.sdpa.proj.x.weight"][:, 0].view(4, 16)
    assert query[:, 0].tolist() == [0, 16, 64, 80]
    assert gate[:, 0].tolist() == [32, 48, 96, 112]


def test_damaged_folders_of_this_package(tmp_path):
    ours = models.gatelm_folder(tmp_path / "ours")
    change_tensors(ours, **{"extra.weight": torch.zeros(1)})
    assert "extra.weight: not part of this model" in message(ours)
    change_tensors(ours, drop=["extra.weight", "final_norm.weight"])
    assert "final_norm.weight: missing" in message(ours)


def test_a_tied_embedding_may_be_stored_as_the_head(tmp_path):
    folder = models.save("llama-tied", tmp_path / "source")
    expected = read_source(folder).state
    name = "model.embed_tokens.weight"
    embedding = load_file(folder / "model.safetensors")[name]
    change_tensors(folder, drop=[name], **{"lm_head.weight": embedding})
    state = read_source(folder).state
    assert state.keys() == expected.keys()
    assert torch.equal(state["embedding.weight"], embedding)
    assert convert(folder, tmp_path / "ours", ConvertOptions()).comparison.passed


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(folder, tmp_path, value):
    change_tensors(folder, **{"model.norm.weight": torch.full((32,), value)})
    assert "model.norm.weight: holds NaN or infinity" in message(folder)
    ours = models.gatelm_folder(tmp_path / "ours")
    change_tensors(ours, **{"final_norm.weight": torch.full((32,), value)})
    assert "final_norm.weight: holds NaN or infinity" in message(ours)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_position_embeddings": 0}, "max_position_embeddings: must be a whole number from 1"),
        ({"rms_norm_eps": 2.5}, "rms_norm_eps: must be a number from 0 to below 1, not 2.5"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": -1, "rope_theta": 1e4}},
            "factor: must be a number above 0, not -1",
        ),
    ],
)
def test_values_that_no_model_can_have_are_refused(tmp_path, changes, words):
    folder = models.save("llama", tmp_path / "llama")
    change_config(folder, **changes)
    assert words in message(folder)


@pytest.mark.parametrize("file", ["../other.safetensors", "/tmp/other.safetensors", "a/b"])
def test_an_index_that_leads_out_of_the_folder_is_refused(folder, file):
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": file}}))
    assert f"names {file!r} as a file of weights" in message(folder)
