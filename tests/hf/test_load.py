import json
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from gatelm.analysis.probe.gatelm_probe import GatelmProbe
from gatelm.config import ConfigError
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.hf import load
from gatelm.hf.load import open_model, stated_context
from gatelm.hf.probe.hf_probe import HFProbe
from gatelm.hf.probe.tokenizer import HFTokenizer
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import export_model

WORDS = ["<pad>", "<s>", "</s>", "the", "cat", "sat", "."]


def word_tokenizer(*, adds_bos, has_bos=True):
    vocab = {word: index for index, word in enumerate(WORDS)}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if adds_bos:
        inner.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    special = {"bos_token": "<s>"} if has_bos else {}
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="</s>", pad_token="<pad>", **special
    )


@pytest.fixture
def folder(tmp_path, fresh):
    """A saved Qwen3-Next with a tokenizer."""
    fresh("qwen3_next").save_pretrained(tmp_path / "tiny")
    word_tokenizer(adds_bos=True).save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def exported(tmp_path):
    cfg = ModelConfig.parse(
        {
            "vocab_size": 258,
            "hidden_dim": 16,
            "num_layers": 2,
            "layer": {
                "mixer": {"num_heads": 2},
                "ffn": {"ffn_dim": 24},
                "gates": ["sdpa-head"],
            },
        },
        "model",
    )
    model = Decoder(cfg)
    init_weights(model, 0)
    run = tmp_path / "my-run"
    export_model(run / "model", model, byte_tokenizer(), {})
    return run, model


def test_a_saved_model_opens_with_its_weights_and_tokenizer(folder, fresh, tokens):
    probe, tokenizer = open_model(folder, device="cpu")
    assert isinstance(probe, HFProbe)
    assert (probe.name, probe.family, probe.dtype) == ("tiny", "qwen3_next", torch.float32)
    expected = HFProbe(fresh("qwen3_next")).observe(tokens)
    torch.testing.assert_close(probe.observe(tokens), expected)
    assert tokenizer.encode("the cat sat") == [3, 4, 5]
    assert tokenizer.display([1, 4]) == ["<s>", "cat"]
    assert (tokenizer.bos_id, tokenizer.adds_bos) == (1, True)
    assert tokenizer.decode([3, 6]) == "the ."


def test_dtype_is_as_asked_or_the_checkpoints_own(folder, fresh, tmp_path):
    assert open_model(folder, device="cpu", dtype="bf16")[0].dtype == torch.bfloat16
    fresh("llama").bfloat16().save_pretrained(tmp_path / "half")
    assert open_model(tmp_path / "half", device="cpu", dtype="auto")[0].dtype == torch.bfloat16
    assert open_model(tmp_path / "half", device="cpu")[0].dtype == torch.float32
    assert open_model(tmp_path / "half", dtype=torch.float64)[0].dtype == torch.float64


def test_a_model_without_tokenizer_opens(tmp_path, fresh):
    fresh("gpt2").save_pretrained(tmp_path / "bare")
    probe, tokenizer = open_model(tmp_path / "bare")
    assert isinstance(probe, HFProbe)
    assert tokenizer is None


def test_the_context_is_what_the_config_states(tmp_path, fresh, exported):
    model = fresh("llama")
    model.save_pretrained(tmp_path / "llama")
    probe, _ = open_model(tmp_path / "llama", device="cpu")
    assert stated_context(tmp_path / "llama", probe) == model.config.max_position_embeddings
    run, ours = exported
    assert stated_context(run, open_model(run, device="cpu")[0]) is None
    export_model(tmp_path / "stated", ours, byte_tokenizer(), {}, context_tokens=32)
    assert stated_context(tmp_path / "stated", open_model(tmp_path / "stated")[0]) == 32


@pytest.mark.parametrize("below", ["", "model"])
def test_a_run_or_model_folder_of_this_package_opens(exported, below):
    run, model = exported
    probe, tokenizer = open_model(run / below, device="cpu")
    assert isinstance(probe, GatelmProbe)
    assert probe.name == "my-run"
    ids = torch.tensor([tokenizer.encode("Gates")])
    torch.testing.assert_close(probe.logits(probe.observe(ids)), model(ids).detach())
    assert (tokenizer.bos_id, tokenizer.adds_bos) == (256, True)
    assert tokenizer.display([71]) == ["G"]
    assert tokenizer.decode(tokenizer.encode("Gates")) == "Gates"


@pytest.mark.parametrize(("adds_bos", "has_bos"), [(True, True), (False, True), (False, False)])
def test_a_tokenizers_own_policy_is_found_out(adds_bos, has_bos):
    tokenizer = HFTokenizer(word_tokenizer(adds_bos=adds_bos, has_bos=has_bos))
    assert tokenizer.adds_bos == adds_bos
    assert tokenizer.bos_id == (1 if has_bos else None)
    assert tokenizer.encode("the") == [3]


def message(where, **settings):
    with pytest.raises(ConfigError) as caught:
        open_model(where, **settings)
    text = str(caught.value)
    assert "\n" not in text
    assert "Traceback" not in text
    return text


def test_what_is_no_model_is_refused(tmp_path, exported):
    run, _ = exported
    assert "no such file or folder, and no installed package" in message(tmp_path / "nowhere")
    assert "no such folder; models are not downloaded here" in message("org-name/some-model")
    assert "hf download org-name/some-model" in message("org-name/some-model")
    assert "the package is installed, but carries no GGUF" in message("pytest")
    assert "there is no such file" in message(tmp_path / "nowhere.gguf")
    (tmp_path / "empty").mkdir()
    assert "no model here (no config.json, no GGUF)" in message(tmp_path / "empty")
    file = run / "model" / "model.safetensors"
    assert "this file is no GGUF; name the folder" in message(file)
    (run / "model" / "config.json").unlink()
    assert "the weights' config.json is missing" in message(run / "model")


def test_folders_that_hold_something_else_are_named(tmp_path):
    adapter, unfinished = tmp_path / "adapter", tmp_path / "unfinished"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    assert "this is an adapter; merge it" in message(adapter)
    (unfinished / "checkpoints").mkdir(parents=True)
    (unfinished / "config.yaml").write_text("name: x")
    assert "the run has no model/ yet" in message(unfinished)


def test_pickled_weights_are_not_opened(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "the weights are pickled, which can run code" in message(folder)
    (folder / "pytorch_model.bin").unlink()
    assert "no .safetensors with the weights" in message(folder)


def test_only_safetensors_inside_the_folder_are_opened(folder):
    index = folder / "model.safetensors.index.json"
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    (folder / "b.bin").write_bytes(b"pickle")
    outside = folder.parent / "out.safetensors"
    outside.write_bytes((folder / "a.safetensors").read_bytes())
    for name in ("b.bin", "../out.safetensors", str(outside), "a/../a.safetensors"):
        index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
        text = message(folder)
        assert f"index.json: names {name!r} as a file of weights" in text
        assert "only .safetensors files in the same folder are opened" in text
    for broken in ("[", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'):
        index.write_text(broken)
        assert "not an index of weights" in message(folder)


def test_pickled_weights_beside_safetensors_are_left_alone(folder, tokens):
    (folder / "pytorch_model.bin").write_bytes(b"not to be opened")
    index = {"weight_map": {"model.norm.weight": "pytorch_model.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert open_model(folder, device="cpu")[0].family == "qwen3_next"


@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation"])
def test_attention_functions_are_not_fetched(folder, key):
    edit(folder, **{key: "someone/flash-kernel"})
    assert f"{key} 'someone/flash-kernel': only eager, sdpa" in message(folder)
    edit(folder, **{key: "eager", "text_config": {key: "someone/x:y"}})
    assert "text_config" in message(folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"a": ' * 10_000])
def test_settings_that_transformers_would_pass_over_are_refused(folder, text):
    (folder / "generation_config.json").write_text(text)
    assert "generation_config.json: cannot be read as a JSON object" in message(folder)


def change_weights(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def test_tensors_without_a_place_are_named_and_refused(folder):
    gate = "model.layers.0.self_attn.gate_proj.weight"
    change_weights(folder, lambda tensors: tensors.update({gate: torch.zeros(2, 4)}))
    text = message(folder, device="cpu")
    assert f"Qwen3NextForCausalLM has no place for 1 of the tensors ({gate})" in text
    assert "--ignore-unknown-tensors goes on" in text
    probe, _ = open_model(folder, device="cpu", unknown_tensors="ignore")
    assert probe.family == "qwen3_next"


def test_weights_that_are_not_finite_are_refused(folder, exported):
    name = "model.norm.weight"
    change_weights(folder, lambda tensors: tensors[name][2:3].fill_(torch.nan))
    assert f"{name}: holds NaN or infinity" in message(folder, device="cpu")
    run, _ = exported
    change = lambda tensors: tensors["final_norm.weight"].fill_(torch.inf)  # noqa: E731
    change_weights(run / "model", change)
    assert "final_norm.weight: holds NaN or infinity" in message(run)


def edit(folder, **changes):
    tree = json.loads((folder / "config.json").read_text())
    tree.update(changes)
    (folder / "config.json").write_text(json.dumps(tree))


def test_configs_that_cannot_be_used_are_refused(folder):
    edit(folder, model_type="never_seen", auto_map={"AutoConfig": "x.X"})
    text = message(folder)
    assert "has no model type 'never_seen'" in text
    assert "code that comes with a checkpoint is not run" in text
    edit(folder, model_type="t5")
    assert "t5 is no causal language model" in message(folder)
    (folder / "config.json").write_text('{"vocab_size": 3}')
    assert "neither a config of gatelm" in message(folder)
    (folder / "config.json").write_text("{")
    assert "config.json: cannot be read as JSON" in message(folder)


def test_a_checkpoints_code_is_never_run(folder, tmp_path):
    edit(folder, auto_map={"AutoModelForCausalLM": "evil.Evil", "AutoConfig": "evil.Config"})
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    probe, _ = open_model(folder)
    assert probe.family == "qwen3_next"
    assert not (tmp_path / "ran").exists()


def test_missing_or_misshapen_weights_are_refused(folder):
    edit(folder, num_hidden_layers=4, layer_types=["linear_attention"] + ["full_attention"] * 3)
    text = message(folder)
    assert "weights are missing, such as model.layers.3." in text
    assert "run on random numbers" in text
    edit(folder, num_hidden_layers=3, layer_types=["linear_attention"] + ["full_attention"] * 2)
    edit(folder, vocab_size=101)
    assert "cannot be loaded" in message(folder) or "another shape" in message(folder)


def test_damaged_weights_and_tokenizers_are_refused(folder):
    (folder / "tokenizer.json").write_text("{}")
    assert "the tokenizer cannot be read" in message(folder)
    (folder / "model.safetensors").write_bytes(b"not safetensors")
    assert "the model cannot be loaded" in message(folder)


def test_device_and_dtype_that_do_not_exist_are_refused(folder):
    assert "--device: nowhere cannot be used here" in message(folder, device="nowhere")
    assert "unknown dtype 'fp23'; did you mean" in message(folder, dtype="fp23")
    if not torch.cuda.is_available():
        assert "--device: cuda cannot be used here" in message(folder, device="cuda")


def package(tmp_path, monkeypatch, *files):
    root = tmp_path / "site" / "carries_models"
    root.mkdir(parents=True)
    (root / "__init__.py").write_text("raise RuntimeError('imported')\n")
    for file in files:
        (root / file).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


def test_a_package_is_searched_without_importing_it(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(load, "_from_gguf", lambda path, *rest: opened.append(path.name))
    package(tmp_path, monkeypatch, "one.gguf")
    open_model("carries-models")
    assert opened == ["one.gguf"]
    assert "carries_models" not in sys.modules


def test_several_ggufs_are_not_guessed_among(tmp_path, monkeypatch):
    package(tmp_path, monkeypatch, "a.gguf", "b.gguf")
    assert "has 2 GGUF files (a.gguf, b.gguf); name one of them" in message("carries-models")


def test_gguf_needs_its_packages(tmp_path, monkeypatch):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(load.importlib.util, "find_spec", lambda name: None)
    text = message(tmp_path / "m.gguf")
    assert "reading GGUF needs the packages accelerate and gguf" in text
    assert "pip install accelerate gguf" in text


def test_a_file_that_is_no_gguf_inside_is_refused(tmp_path):
    pytest.importorskip("gguf")
    (tmp_path / "m.gguf").write_bytes(b"something else")
    assert "the model cannot be loaded" in message(tmp_path / "m.gguf")
