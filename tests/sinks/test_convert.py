"""Sinks become gates: exactly, where the sink's key and value are constants, and checked."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gatelm.config import ConfigError
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.hf.probe.tokenizer import GatelmTokenizer
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.cache import KVCache
from gatelm.nn.forward_state import Context
from gatelm.sinks.constants import sink_constants, sink_layers
from gatelm.sinks.convert import SinkError, SinkOptions, _model, sinks_to_gates
from gatelm.sinks.effects import effects
from gatelm.sinks.rewrite import LinearGate, rewrite
from gatelm.testing.sinks import attend_with_sink

sys.path.insert(0, str(Path(__file__).parent))
from planted import BOS, planted, some_texts

TOKENIZER = GatelmTokenizer(byte_tokenizer())
OPTIONS = {"seq_len": 160, "fit_rows": 24, "check_rows": 8}


def text_ids(rows=3, length=40):
    return torch.randint(97, 110, (rows, length), generator=torch.Generator().manual_seed(1))


def with_bos(ids):
    return torch.cat((torch.full((len(ids), 1), BOS), ids), dim=1)


def virtual(model):
    layers = sink_layers(model)
    constants = sink_constants(model, [with_bos(text_ids(1, 2))], layers)
    cfg, state = rewrite(model.cfg, model.state_dict(), constants, {})
    new = type(model)(cfg).to(model.embedding.weight.dtype).eval()
    new.load_state_dict(state)
    return new


@pytest.mark.parametrize(
    "mixer",
    [
        {},
        {"qk_norm": {}},
        {"rope": None},
        {"rope": {"base": 100.0, "partial_factor": 0.5}},
        {"rope": {"base": 100.0, "pairs": "neighbours"}},
        {"rope": {"scaling": {"kind": "yarn", "factor": 4.0, "original_tokens": 16}}},
        {"num_kv_heads": 4, "scale": 0.2},
        {"bias": "none"},
        {"bias": "all"},
        {"backend": "eager"},
    ],
    ids=str,
)
def test_the_virtual_form_is_the_model_with_the_sink_outside_the_text(mixer):
    """BOS sees itself alone, so its keys and values are constants: nothing may change at all."""
    model = planted(dtype=torch.float64, **mixer)
    new, ids = virtual(model), text_ids()
    expected, found = model(with_bos(ids))[:, 1:], new(ids)
    # a turn by position + 1 and one back are of float32 angles, whatever the model's dtype
    atol = 1e-9 if mixer.get("rope", "") is None else 1e-4
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)
    grads = []
    for one, logits in ((model, expected), (new, found)):
        one.zero_grad()
        logits.square().mean().backward()
        grads.append([one.embedding.weight.grad[97:110], one.layers[0].attn.qkv.q.weight.grad])
    for theirs, ours in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=10 * atol)


@pytest.mark.parametrize("rope", [None, {"base": 100.0}])
def test_the_gate_is_one_more_key_and_value(rope):
    """The layer, biases and gate included, against its naive twin: outputs and gradients."""
    model = planted(dtype=torch.float64, rope=rope)
    constants = sink_constants(model, [with_bos(text_ids(1, 2))], [0])
    layer = virtual(model).layers[0].attn
    x, kept = torch.randn(1, 9, 32, dtype=torch.float64, requires_grad=True), {}
    for name in ("q_rot_gated", "k_rot_gated", "v_gated"):
        layer.gates.taps[name].register_forward_hook(
            lambda module, args, output, name=name: kept.__setitem__(name, output[0])
        )
    found = layer(x, x, Context(AttentionMask(9, 9), torch.arange(9)))
    q, k, v = (kept[name] for name in ("q_rot_gated", "k_rot_gated", "v_gated"))
    scale, c = 8**-0.5, constants[0].v
    sink_k = layer.gates["sdpa"].proj["q_rot"].weight.detach()[::2] / -scale
    y = attend_with_sink(q, k, v + c, sink_k, c, scale)
    expected = (y.flatten(-2) @ layer.o_proj.weight.T)[None]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    (ours,) = torch.autograd.grad(found.square().sum(), x, retain_graph=True)
    (theirs,) = torch.autograd.grad(expected.square().sum(), x)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_caches_chunks_and_padding_agree_with_the_plain_forward():
    new, ids = virtual(planted(dtype=torch.float64)), text_ids(2, 30)
    expected, cache = new(ids), KVCache()
    parts = [new(ids[:, a:b], cache=cache) for a, b in ((0, 7), (7, 8), (8, 9), (9, 30))]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=0, atol=1e-9)
    padded = torch.cat((torch.zeros(2, 5, dtype=torch.long), ids), dim=1)
    documents = torch.cat((torch.full((2, 5), -1), torch.zeros_like(ids)), dim=1)
    found = new(padded, documents=documents)[:, 5:]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    packed = torch.cat((ids[:1], ids[1:]), dim=1)
    documents = torch.arange(2).repeat_interleave(30)[None]
    found = new(packed, documents=documents)
    torch.testing.assert_close(found.view(2, 30, -1), expected, rtol=0, atol=1e-9)


def test_a_gate_that_reads_the_input_is_folded_exactly():
    """g SDPA(v - c) + W_o c, written out beside the module."""
    model = planted(dtype=torch.float64)
    constants = sink_constants(model, [with_bos(text_ids(1, 2))], [0])
    gate = LinearGate(torch.randn(4, 32).double() / 8, torch.randn(4).double())
    cfg, state = rewrite(model.cfg, model.state_dict(), constants, {0: gate})
    new = type(model)(cfg).double().eval()
    new.load_state_dict(state)
    x, seen = torch.randn(2, 9, 32).double(), {}
    hook = (
        model.layers[0]
        .attn.gates.taps["sdpa"]
        .register_forward_hook(lambda module, args, output: seen.__setitem__("y", output))
    )

    def context():
        return Context(AttentionMask(9, 9), torch.arange(9))

    model.layers[0].attn(x, x, context())
    hook.remove()
    g = torch.sigmoid(x @ gate.weight.T + gate.bias)[..., None]
    c = constants[0].v.repeat_interleave(2, dim=0)
    y = g * (seen["y"] - c) + c
    expected = y.flatten(-2) @ model.layers[0].attn.o_proj.weight.T
    torch.testing.assert_close(new.layers[0].attn(x, x, context()), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("form", ["virtual", "auto"])
def test_a_planted_sink_is_gone(form):
    model = planted()
    options = SinkOptions(form=form, **OPTIONS)
    cfg, state, report = sinks_to_gates(
        model.cfg, model.state_dict(), TOKENIZER, some_texts(24, 700), options
    )
    assert report.before.strongest[1].position == 0
    assert report.before.strongest[1].share > 0.3
    assert report.after.strongest[1].share < 0.1
    assert report.bos == "dropped"
    ids = text_ids(1, 100)
    if form == "virtual":
        assert abs(report.loss_change[0]) < 1e-3
        torch.testing.assert_close(
            _model(cfg, state)(ids), model(with_bos(ids))[:, 1:], rtol=0, atol=1e-3
        )
    else:
        assert max(report.r2.values()) > 0.3


def test_a_sink_that_is_reborn_is_caught():
    """With BOS first in the text again, its own embedding makes the sink that it made before."""
    model = planted()
    with pytest.raises(SinkError, match="a sink is reborn at position 0") as error:
        sinks_to_gates(
            model.cfg,
            model.state_dict(),
            TOKENIZER,
            some_texts(24, 700),
            SinkOptions("gate", **OPTIONS),
        )
    assert error.value.report.bos == "first"
    assert error.value.report.after.strongest[1].share > 0.5


def test_two_sinks_are_reported_not_hidden():
    """Every text begins with a second token that draws attention: it is the sink that remains."""
    model = planted(sinks=(BOS, ord("!")))
    texts = some_texts(40, 159, front="!")
    with pytest.raises(SinkError, match="a sink is reborn at position 0") as error:
        sinks_to_gates(
            model.cfg, model.state_dict(), TOKENIZER, texts, SinkOptions("virtual", **OPTIONS)
        )
    assert error.value.report.after.strongest[1].share > 0.1


def test_a_sink_whose_weight_does_not_depend_on_the_input_shows_in_r2():
    model = planted(varies=0.0, scale=1.0)
    _, _, report = sinks_to_gates(
        model.cfg,
        model.state_dict(),
        TOKENIZER,
        some_texts(24, 700),
        SinkOptions("auto", **OPTIONS),
    )
    assert report.r2[0] < 0.1


def test_a_model_without_a_sink_is_refused():
    model = planted(strength=0.0, varies=0.0)
    with pytest.raises(SinkError, match="has no attention sink: no position gets 10%"):
        sinks_to_gates(
            model.cfg, model.state_dict(), TOKENIZER, some_texts(24, 700), SinkOptions(**OPTIONS)
        )


def test_the_loss_may_not_rise_beyond_what_is_allowed():
    model = planted()
    options = SinkOptions("virtual", max_loss=-1.0, **OPTIONS)
    with pytest.raises(SinkError, match=r"the loss rises by .* more than --max-loss -1"):
        sinks_to_gates(model.cfg, model.state_dict(), TOKENIZER, some_texts(24, 700), options)


def test_sinks_are_found_at_every_position():
    model = planted(sinks=(ord("z"),))
    rows = text_ids(4, 200)
    rows[:, 37] = ord("z")
    found = effects(model, rows, [0, 1])
    assert found.strongest[1].position == 37
    assert found.strongest[1].share > 0.3


@pytest.mark.parametrize(
    ("mixer", "words"),
    [
        ({"window_tokens": 16}, "no layer of full softmax attention"),
        ({"rope": None, "position_bias": {}}, "layer 0: with position_bias"),
    ],
)
def test_layers_that_cannot_be_rewritten_say_why(mixer, words):
    with pytest.raises(ConfigError, match=words):
        sink_layers(planted(**mixer))
