import pytest
import torch

from gatelm.config import ConfigError
from gatelm.nn.attention.module import use_backend
from gatelm.nn.cache import KVCache
from gatelm.nn.model import ModelConfig
from gatelm.testing.reference import reference_layer
from helpers import decoder, random_ids

ORIGINAL = 6
SCALINGS = {
    "linear": {"factor": 2.0},
    "ntk": {"factor": 2.0},
    "dynamic_ntk": {"factor": 4.0, "original_tokens": ORIGINAL},
    "yarn": {"factor": 4.0, "original_tokens": 64, "beta_fast": 8.0},
    "longrope": {
        "factor": 2.0,
        "original_tokens": ORIGINAL,
        "short_factors": [1.0, 1.1, 1.2, 1.5],
        "long_factors": [1.0, 1.5, 2.0, 3.0],
    },
    "llama3": {"factor": 4.0, "original_tokens": 64},
}


def config(kind, num_layers=1, gates=(), **mixer):
    rope = {"base": 100.0, "scaling": {"kind": kind, **SCALINGS[kind]}}
    mixer = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "rope": rope, **mixer}
    layer = {"mixer": mixer, "ffn": {"ffn_dim": 16}, "gates": list(gates)}
    tree = {"vocab_size": 19, "hidden_dim": 16, "num_layers": num_layers, "layer": layer}
    return ModelConfig.parse(tree)


def build(kind, dtype=torch.float64, **settings):
    return decoder(config(kind, **settings), scale=8.0, dtype=dtype)


def tokens(rows, length):
    return random_ids(19, rows, length, seed=2)


@pytest.mark.parametrize("documents", [None, [[0] * 9, [0] * 7 + [1] * 2]])
@pytest.mark.parametrize("kind", SCALINGS)
def test_a_layer_equals_its_naive_twin_forward_and_backward(kind, documents):
    model = build(kind)
    docs = None if documents is None else torch.tensor(documents)
    params = {
        name.removeprefix("layers.0."): p.detach().clone().requires_grad_()
        for name, p in model.named_parameters()
        if name.startswith("layers.0.")
    }
    resid = model.embedding(tokens(2, 9)).detach()
    naive_input, seen = resid.clone().requires_grad_(), {}
    model.layers[0].register_forward_hook(lambda module, args, out: seen.update(out=out))
    model(tokens(2, 9), documents=docs)
    naive = reference_layer(model.cfg.layer, 16, params, naive_input, docs)
    torch.testing.assert_close(seen["out"], naive, atol=2e-6, rtol=2e-6)
    weights = torch.linspace(-1, 1, naive.numel(), dtype=naive.dtype).view_as(naive)
    (seen["out"] * weights).sum().backward()
    (naive * weights).sum().backward()
    for name in ("attn.qkv.q.weight", "attn.qkv.k.weight"):
        found = model.layers[0].get_parameter(name).grad
        torch.testing.assert_close(found, params[name].grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("kind", SCALINGS)
def test_cached_keys_are_turned_by_the_length_so_far(kind, chunk):
    """With one layer, keys and values do not depend on earlier lengths, so that a text in parts
    ends as the same text at once, also where the frequencies have changed in between."""
    model, text = build(kind), tokens(2, 12)
    cache = KVCache()
    for start in range(0, 12, chunk):
        stop = start + chunk
        found = model(text[:, start:stop], cache=cache)[:, -1]
        torch.testing.assert_close(found, model(text[:, :stop])[:, -1], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind", ["dynamic_ntk", "longrope"])
def test_frequencies_move_when_the_original_length_is_passed(kind):
    model, text = build(kind), tokens(1, ORIGINAL + 1)
    inside = model(text[:, :ORIGINAL])
    assert not torch.allclose(inside, model(text)[:, :ORIGINAL], atol=1e-3)
    one = build(kind, num_layers=3)
    cache = KVCache()
    one(text[:, :3], cache=cache)
    torch.testing.assert_close(
        one(text[:, 3:ORIGINAL], cache=cache), one(text[:, :ORIGINAL])[:, 3:]
    )


@pytest.mark.parametrize("kind", ["dynamic_ntk", "longrope"])
def test_each_document_of_a_cached_row_has_its_own_length(kind):
    model, text = build(kind), tokens(1, 11)
    documents = torch.tensor([[0] * 4 + [1] * 7])
    cache = KVCache()
    model(text[:, :9], documents=documents[:, :9], cache=cache)
    found = model(text[:, 9:], documents=documents[:, 9:], cache=cache)[:, -1]
    torch.testing.assert_close(found, model(text[:, 4:])[:, -1], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind", SCALINGS)
def test_backends_agree_and_bfloat16_keeps_float32_angles(kind):
    model, text = build(kind, torch.bfloat16), tokens(1, 9)
    angles = []
    layer = model.layers[0].attn

    def keep(module, args):
        angles.append(args[2].rotation(layer.cfg.rope, 8))

    layer.register_forward_pre_hook(keep)
    fused = model(text)
    assert [t.dtype for t in angles[0]] == [torch.float32] * 2
    use_backend(model, "eager")
    torch.testing.assert_close(fused.float(), model(text).float(), atol=0.2, rtol=0.1)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"gates": ["scores-key"]}, "site: k_rot comes after the rotation"),
        ({"window_tokens": 4}, "dynamic_ntk turns cached keys anew, which window_tokens has no"),
    ],
)
def test_what_cannot_go_with_moving_frequencies_is_refused(settings, expected):
    with pytest.raises(ConfigError) as raised:
        config("dynamic_ntk", **settings)
    assert expected in str(raised.value)
    config("yarn", **settings)
