import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from gatelm.config import ConfigError
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.attention.module import use_backend
from gatelm.nn.cache import KVCache
from gatelm.nn.model import ModelConfig
from gatelm.nn.positions.alibi import AlibiConfig
from gatelm.testing.reference import reference_layer
from helpers import decoder, random_ids


def config(**mixer):
    mixer = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "rope": None, **mixer}
    layer = {"mixer": {"position_bias": {"kind": "alibi"}, **mixer}, "ffn": {"ffn_dim": 16}}
    return ModelConfig.parse({"vocab_size": 19, "hidden_dim": 16, "num_layers": 2, "layer": layer})


def build(**mixer):
    return decoder(config(**mixer), scale=8.0)


def tokens(rows, length):
    return random_ids(19, rows, length, seed=2)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 6, 8, 9, 12, 16, 20])
def test_slopes_are_those_of_transformers(num_heads):
    theirs = build_alibi_tensor(torch.ones(1, 5, dtype=torch.long), num_heads, torch.float32)
    torch.testing.assert_close(
        torch.tensor(AlibiConfig().slopes(num_heads)), theirs.view(num_heads, 5)[:, 1]
    )


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("documents", [None, [[0] * 9, [0] * 4 + [1] * 5]])
def test_a_layer_equals_its_naive_twin_forward_and_backward(documents, backend):
    model = build()
    use_backend(model, backend)
    docs = None if documents is None else torch.tensor(documents)
    params = {
        name.removeprefix("layers.0."): p.detach().clone().requires_grad_()
        for name, p in model.named_parameters()
        if name.startswith("layers.0.")
    }
    resid, seen = model.embedding(tokens(2, 9)).detach(), {}
    model.layers[0].register_forward_hook(lambda module, args, out: seen.update(out=out))
    model(tokens(2, 9), documents=docs)
    naive = reference_layer(model.cfg.layer, 16, params, resid, docs)
    torch.testing.assert_close(seen["out"], naive, atol=1e-6, rtol=1e-6)
    weights = torch.linspace(-1, 1, naive.numel(), dtype=naive.dtype).view_as(naive)
    (seen["out"] * weights).sum().backward()
    (naive * weights).sum().backward()
    for name in ("attn.qkv.q.weight", "attn.qkv.k.weight"):
        found = model.layers[0].get_parameter(name).grad
        torch.testing.assert_close(found, params[name].grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_text_in_parts_is_the_text_at_once(chunk):
    model, text, cache = build(), tokens(2, 12), KVCache()
    parts = [model(text[:, i : i + chunk], cache=cache) for i in range(0, 12, chunk)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(text), atol=1e-5, rtol=1e-5)


def test_distance_is_penalised():
    near, far = build(), build(position_bias=None)
    text = tokens(1, 12)
    changed = text.clone()
    changed[0, 0] = (text[0, 0] + 1) % 19
    with torch.no_grad():
        moved = [(m(text) - m(changed))[0, -1].abs().max() for m in (near, far)]
    assert float(moved[0]) < float(moved[1])


def test_a_config_without_it_hashes_as_it_did():
    plain = AttentionConfig(num_heads=4)
    assert plain.content_hash() == AttentionConfig(num_heads=4, position_bias=None).content_hash()
    biased = AttentionConfig(num_heads=4, rope=None, position_bias=AlibiConfig())
    assert biased.content_hash() != AttentionConfig(num_heads=4, rope=None).content_hash()


def test_it_stands_in_place_of_rotary_positions():
    with pytest.raises(ConfigError, match="alibi stands in place of rotary positions"):
        config(rope={})
