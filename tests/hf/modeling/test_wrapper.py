import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, StaticCache
from transformers.utils import logging

import gatelm  # noqa: F401
from gatelm.config import ConfigError
from gatelm.hf.modeling.wrapper import GatelmConfig, GatelmForCausalLM
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.nn.positions.rope import RopeConfig, rotary_angles
from gatelm.train.saving.export import load_model
from helpers import random_ids

VOCAB = 61
LSE = {"site": "sdpa", "granularity": "head", "inputs": ["lse", "const"]}
EAGER = {"layer": {"mixer": {"backend": "eager"}}}
VARIANTS = {
    "none": {},
    "sdpa-head": {"layer": {"gates": ["sdpa-head"]}},
    "sdpa-element": {"layer": {"gates": ["sdpa-element"]}, "head": "untied"},
    "value-key": {"layer": {"gates": ["value", "key"]}},
    "scores": {"layer": {"gates": ["scores-q", "scores-key"]}},
    "low-rank": {"layer": {"gates": [{"site": "sdpa", "rank": 3, "init": {"bias": 1.0}}]}},
    "residual-out": {"layer": {"gates": ["residual"], "norm_placement": "sandwich"}},
    "own-output": {"layer": {"gates": [{"site": "sdpa", "inputs": ["y"]}]}},
    "sink": {"layer": {"gates": [LSE], **EAGER["layer"]}},
    "window": {"layer": {"gates": ["sdpa-head"], "mixer": {"window_tokens": 5}}},
    "learned-positions": {
        "position_embedding": {"max_tokens": 64},
        "layer": {"mixer": {"rope": None}, "gates": ["ffn"]},
    },
    "overrides": {"layer_overrides": [{"layers": "1:", "set": {"gates": ["sdpa-head"]}}]},
}


def config(variant="sdpa-element", **changes):
    tree = {"vocab_size": VOCAB, "hidden_dim": 32, "num_layers": 3, "init": {"std": 0.3}}
    layer = {"mixer": {"num_heads": 4, "num_kv_heads": 2}, "ffn": {"ffn_dim": 40}}
    change = {**VARIANTS[variant], **changes}
    given = change.pop("layer", {})
    layer.update({**given, "mixer": {**layer["mixer"], **given.get("mixer", {})}})
    return ModelConfig.parse({**tree, **change, "layer": layer})


def build(variant="sdpa-element", **changes):
    decoder = Decoder(config(variant, **changes))
    init_weights(decoder, 3)
    return decoder.eval()


def wrap(variant="sdpa-element", **changes):
    ids = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 1}
    return GatelmForCausalLM.from_decoder(build(variant, **changes), **ids).eval()


@pytest.fixture(autouse=True)
def _no_bars():
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.fixture
def tokens():
    return random_ids(VOCAB, 3, 14, special=2)


def generate(model, tokens, **settings):
    settings = {"max_new_tokens": 8, "do_sample": False, **settings}
    mask = settings.pop("attention_mask", torch.ones_like(tokens))
    with torch.no_grad():
        return model.generate(tokens, attention_mask=mask, **settings)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_comes_back_from_a_folder(variant, tokens, tmp_path):
    decoder = build(variant)
    expected = decoder(tokens)
    model = GatelmForCausalLM.from_decoder(decoder).eval()
    assert torch.equal(model(tokens).logits, expected)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(decoder.state_dict())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is GatelmForCausalLM
    assert not loaded.training
    assert loaded.config.model_config == decoder.cfg
    assert torch.equal(loaded(tokens).logits, expected)
    plain, _ = load_model(tmp_path)
    assert torch.equal(plain(tokens), expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_cache_generates_what_recomputing_does(variant, tokens):
    model = wrap(variant)
    assert torch.equal(generate(model, tokens), generate(model, tokens, use_cache=False))


@pytest.mark.parametrize("variant", ["sdpa-element", "scores", "window", "learned-positions"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(variant, side, tokens):
    model = wrap(variant)
    lengths = [14, 9, 4]
    padded = torch.full_like(tokens, 1)
    mask = torch.zeros_like(tokens)
    for row, length in enumerate(lengths):
        place = slice(14 - length, 14) if side == "left" else slice(0, length)
        padded[row, place] = tokens[row, :length]
        mask[row, place] = 1
    logits = model(padded, attention_mask=mask).logits
    together = generate(model, padded, attention_mask=mask)
    for row, length in enumerate(lengths):
        alone = tokens[row : row + 1, :length]
        real = logits[row][mask[row].bool()]
        torch.testing.assert_close(real, model(alone).logits[0], rtol=1e-4, atol=1e-5)
        assert torch.equal(together[row, -8:], generate(model, alone)[0, -8:])


def test_a_row_of_padding_is_finite(tokens):
    model = wrap()
    mask = torch.ones_like(tokens)
    mask[1] = 0
    loss = model(tokens, attention_mask=mask).logits.square().sum()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_packed_rows_are_those_texts_alone(tokens):
    model = wrap("scores")
    row, other = tokens[:1], tokens[1:2, :6]
    packed = torch.cat((row, other), dim=1)
    positions = torch.cat((torch.arange(14), torch.arange(6)))[None]
    output = model(packed, position_ids=positions)
    logits = output.logits
    assert list(output) == ["logits"]
    with pytest.raises(ValueError, match="rows of several documents have no cache"):
        model(packed, position_ids=positions, cache=DynamicCache())
    torch.testing.assert_close(logits[:, :14], model(row).logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits[:, 14:], model(other).logits, rtol=1e-4, atol=1e-5)
    assert (logits[:, 14:] - model(packed).logits[:, 14:]).abs().max() > 0.01


def test_beams_follow_their_cache(tokens):
    model = wrap("window")
    settings = {"num_beams": 4, "num_return_sequences": 2}
    cached = generate(model, tokens, **settings)
    assert torch.equal(cached, generate(model, tokens, use_cache=False, **settings))
    assert not torch.equal(cached[::2], generate(model, tokens))


def test_sampling_depends_on_the_seed_alone(tokens):
    model = wrap()

    def draw(seed):
        torch.manual_seed(seed)
        return generate(model, tokens, do_sample=True, temperature=2.0, top_k=0)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_a_cache_is_continued_and_static_ones_are_refused(tokens):
    model, cache = wrap(), DynamicCache()
    model(tokens[:, :9], cache=cache)
    rest = model(tokens[:, 9:], cache=cache).logits
    torch.testing.assert_close(rest, model(tokens).logits[:, 9:], rtol=1e-4, atol=1e-5)
    older = DynamicCache()
    model(tokens[:, :9], past_key_values=older)
    again = model(tokens[:, 9:], past_key_values=older).logits
    assert torch.equal(again, rest)
    with pytest.raises(ValueError, match="use a DynamicCache"):
        model(tokens, cache=StaticCache(config=model.config, max_cache_len=32))


def with_holes(tokens):
    """Rows with padding between their tokens, as turns padded one by one give them; the mask."""
    mask = torch.ones(len(tokens), tokens.shape[1] + 5, dtype=torch.long)
    mask[0, [0, 1, 2, 3, 4]] = 0
    mask[1, [3, 4, 9, 12, 13]] = 0
    mask[2, [0, 5, 6, 7, 15]] = 0
    rows = torch.full_like(mask, 1)
    rows[mask.bool()] = tokens.flatten()
    return rows, mask


def test_padding_between_tokens_changes_nothing(tokens):
    model = wrap()
    rows, mask = with_holes(tokens)
    expected = model(tokens).logits
    found = model(rows, attention_mask=mask).logits
    torch.testing.assert_close(found[mask.bool()], expected.flatten(0, 1))
    positions = (mask.cumsum(1) - 1).masked_fill(mask == 0, 1)
    given = model(rows, attention_mask=mask, position_ids=positions).logits
    torch.testing.assert_close(given[mask.bool()], expected.flatten(0, 1))
    new = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 1}
    plain = model.generate(tokens, **new)[:, tokens.shape[1] :]
    assert torch.equal(model.generate(rows, attention_mask=mask, **new)[:, rows.shape[1] :], plain)


def test_generate_infers_the_mask_of_padding_inside_a_prompt(tokens):
    model = wrap()
    tokens = tokens.clamp(min=2)
    rows, _ = with_holes(tokens)
    new = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 1}
    plain = model.generate(tokens, **new)[:, tokens.shape[1] :]
    assert torch.equal(model.generate(rows, **new)[:, rows.shape[1] :], plain)


@pytest.mark.parametrize(
    ("mixer", "why"),
    [
        ({"kind": "delta", "num_heads": 2, "head_dim": 8}, "layer 0 .delta. carries a state"),
        ({"num_heads": 4, "window_tokens": 4}, "layer 0 counts the distance"),
    ],
)
def test_layers_that_cannot_leave_out_padding_say_so(tokens, mixer, why):
    layer = {"mixer": mixer, "ffn": {"ffn_dim": 24}}
    tree = {"vocab_size": VOCAB, "hidden_dim": 32, "num_layers": 1, "layer": layer}
    model = GatelmForCausalLM(GatelmConfig(model=tree)).eval()
    rows, mask = with_holes(tokens)
    with pytest.raises(ValueError, match=f"padding between its tokens, but {why}"):
        model(rows, attention_mask=mask)


def test_inputs_that_cannot_be_meant_are_one_sentence(tokens):
    model = wrap()
    cases = [
        ({"attention_mask": torch.ones(3, 5)}, r"shape \(3, 5\) for \(3, 14\) tokens"),
        ({"attention_mask": torch.ones(3, 1, 14, 14)}, "has 4 axes"),
        ({"position_ids": torch.arange(3, 17)[None]}, "3 at token 0 of row 0"),
        ({"output_attentions": True}, "gatelm analyze"),
        ({"inputs_embeds": torch.zeros(3, 14, 32)}, "give input_ids"),
    ]
    for inputs, message in cases:
        with pytest.raises(ValueError, match=message) as error:
            model(tokens, **inputs)
        assert "\n" not in str(error.value)


def test_the_loss_is_the_mean_over_shifted_labels(tokens):
    model = wrap()
    labels = tokens.clone()
    labels[:, :4] = -100
    output = model(tokens, labels=labels)
    scores = output.logits[:, :-1].log_softmax(-1)
    picked = scores.gather(-1, tokens[:, 1:, None])[:, 3:, 0]
    torch.testing.assert_close(output.loss, -picked.mean())
    total = model(tokens, labels=labels, num_items_in_batch=7).loss
    torch.testing.assert_close(total, -picked.sum() / 7)


def test_hidden_states_and_few_logits(tokens):
    model = wrap()
    output = model(tokens, output_hidden_states=True, logits_to_keep=2)
    assert len(output.hidden_states) == 4
    assert torch.equal(output.hidden_states[0], model.model.embedding(tokens))
    assert torch.equal(output.hidden_states[-1], model.model.hidden(tokens))
    torch.testing.assert_close(output.logits, model(tokens).logits[:, -2:])
    logits, *_ = model(tokens, return_dict=False)
    assert torch.equal(logits, model(tokens).logits)


@pytest.mark.parametrize("variant", ["sdpa-element", "sink"])
def test_recomputed_activations_give_the_same_gradients(variant, tokens):
    model = wrap(variant).train()
    model(tokens, labels=tokens).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)()
    calls = []
    model.model.layers[0].attn_norm.register_forward_hook(lambda *_: calls.append(1))
    model(tokens, labels=tokens, use_cache=True, cache=DynamicCache()).loss.backward()
    assert len(calls) == 2
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])


def test_fresh_weights_follow_our_table_and_torchs_seed():
    def fresh(seed):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(GatelmConfig(model=config("low-rank")))

    first, again, other = fresh(1), fresh(1), fresh(2)
    name = "layers.0.attn.gates.sdpa.proj.x.up"
    first, again, other = (m.model.state_dict() for m in (first, again, other))
    assert all(torch.equal(first[n], again[n]) for n in first)
    assert not torch.equal(first[name], other[name])
    assert torch.equal(first["layers.0.attn.gates.sdpa.bias"], torch.full((4, 8), 1.0))
    assert first["layers.1.attn_norm.weight"].eq(1).all()


def test_loaded_weights_stay_as_they_are(tmp_path, tokens):
    model = wrap("low-rank")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    model.save_pretrained(tmp_path)
    for loaded in (
        AutoModelForCausalLM.from_pretrained(tmp_path),
        GatelmForCausalLM.from_pretrained(tmp_path),
    ):
        assert all(p.eq(0.5).all() for p in loaded.parameters())


def test_a_state_dict_of_the_folder_is_read_too(tmp_path, tokens):
    model, other = wrap("low-rank", head="untied"), wrap("low-rank", head="untied")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    model.save_pretrained(tmp_path)
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(other(tokens).logits, model(tokens).logits)
    other.load_state_dict(model.state_dict())
    with pytest.raises(RuntimeError, match="spare"):
        other.load_state_dict({**model.state_dict(), "spare": tokens})


def test_shards(tmp_path, tokens):
    model = wrap(head="untied")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    shards = sorted(set(index["weight_map"].values()))
    assert len(shards) > 2
    assert set(index["weight_map"]) == set(model.model.state_dict())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)
    assert torch.equal(load_model(tmp_path)[0](tokens), model(tokens).logits)


def test_tied_and_untied_heads(tmp_path, tokens):
    for head in ("tied", "untied"):
        model = wrap("none", head=head)
        assert (model.get_output_embeddings() is None) == (head == "tied")
        model.save_pretrained(tmp_path / head)
        names = load_file(tmp_path / head / "model.safetensors")
        assert ("head.weight" in names) == (head == "untied")
        path = tmp_path / head / "config.json"
        tree = json.loads(path.read_text())
        assert tree["tie_word_embeddings"] == (head == "tied")
        path.write_text(json.dumps({**tree, "tie_word_embeddings": head != "tied"}))
        with pytest.raises(ConfigError, match="make them agree"):
            AutoConfig.from_pretrained(tmp_path / head)


def test_a_damaged_folder_is_one_sentence(tmp_path):
    model = wrap("none", head="untied")
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = load_file(path)

    def message():
        with pytest.raises(ConfigError) as error:
            GatelmForCausalLM.from_pretrained(tmp_path)
        assert "\n" not in str(error.value)
        return str(error.value)

    save_file({k: v for k, v in whole.items() if k != "head.weight"}, path, {"format": "pt"})
    assert "1 weights are missing, such as model.head.weight" in message()
    save_file({**whole, "spare": torch.zeros(2)}, path, {"format": "pt"})
    assert "1 weights have no place, such as spare" in message()
    path.write_bytes(path.read_bytes()[:200])
    assert "the weights cannot be read" in message()


def test_the_embedding_can_grow(tokens):
    for head in ("tied", "untied"):
        model = wrap(head=head)
        before = model(tokens).logits
        model.resize_token_embeddings(VOCAB + 3, mean_resizing=False)
        assert model.config.vocab_size == model.model.cfg.vocab_size == VOCAB + 3
        torch.testing.assert_close(model(tokens).logits[..., :VOCAB], before)


def test_bfloat16_keeps_the_rotation_in_float32(tokens):
    model = wrap("none").to(torch.bfloat16)
    assert not list(model.buffers())
    assert model(tokens).logits.dtype == torch.bfloat16
    rope, positions = RopeConfig(base=1e6), torch.tensor([[4096, 32768]])
    torch.set_default_dtype(torch.bfloat16)
    try:
        angles = rotary_angles(rope, 64, positions)
    finally:
        torch.set_default_dtype(torch.float32)
    assert angles.dtype == torch.float32
    exponent = -torch.arange(0, 64, 2, dtype=torch.float64) / 64
    exact = positions[..., None].double() * 1e6**exponent
    assert (angles - exact).abs().max() < 0.01
    rounded = positions[..., None] * (1e6**exponent).bfloat16().double()
    assert (rounded - exact).abs().max() > 1.0


def test_from_pretrained_takes_a_dtype_and_a_backend(tmp_path, tokens):
    wrap().save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="bfloat16")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    model.save_pretrained(tmp_path / "bf16")
    assert json.loads((tmp_path / "bf16" / "config.json").read_text())["dtype"] == "bfloat16"
    eager = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert type(eager.model.layers[0].attn.backend).__name__ == "EagerBackend"
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)
    torch.testing.assert_close(eager(tokens).logits, plain(tokens).logits)
    wrap("sink").save_pretrained(tmp_path / "sink")
    sink = AutoModelForCausalLM.from_pretrained(tmp_path / "sink")
    assert type(sink.model.layers[0].attn.backend).__name__ == "EagerBackend"
    fused = AutoModelForCausalLM.from_pretrained(tmp_path / "sink", attn_implementation="sdpa")
    torch.testing.assert_close(fused(tokens).logits, sink(tokens).logits)


def test_a_config_without_a_model_is_refused():
    with pytest.raises(ConfigError, match="model: the tree"):
        GatelmConfig()
    with pytest.raises(ConfigError, match="did you mean 'num_layers'"):
        GatelmConfig(model={**config().tree(), "num_layer": 2})
