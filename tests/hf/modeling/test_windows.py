"""Windows against transformers' Mistral, and their ring in transformers' cache."""

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from gatelm.hf.modeling.wrapper import GatelmForCausalLM
from gatelm.nn.attention.module import use_backend
from gatelm.nn.cache import KVCache
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from helpers import random_ids

VOCAB, WINDOW = 40, 5
NAMES = {
    "embed_tokens.weight": "embedding.weight",
    "norm.weight": "final_norm.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn.o_proj",
    "mlp": "ffn",
    **{f"self_attn.{name}_proj": f"attn.qkv.{name}" for name in "qkv"},
}


def tree(**mixer):
    return {
        "vocab_size": VOCAB,
        "hidden_dim": 32,
        "num_layers": 3,
        "head": "untied",
        "layer": {
            "mixer": {"num_heads": 4, "num_kv_heads": 2, "window_tokens": WINDOW, **mixer},
            "ffn": {"ffn_dim": 48},
        },
    }


@pytest.fixture(scope="module")
def pair():
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=WINDOW,
        tie_word_embeddings=False,
        initializer_range=0.3,
        rms_norm_eps=1e-6,
        pad_token_id=None,
    )
    theirs = MistralForCausalLM(config).eval()
    ours = Decoder(ModelConfig.parse(tree(), "model")).eval()
    state = {}
    for name, tensor in theirs.state_dict().items():
        name = name.removeprefix("model.").replace("lm_head", "head")
        for old, new in NAMES.items():
            name = new if name == old else name.replace(f".{old}.", f".{new}.")
        state[name] = tensor
    ours.load_state_dict(state)
    return theirs, ours


def tokens(rows=2, length=17):
    return random_ids(VOCAB, rows, length, special=3)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@torch.no_grad()
def test_logits_equal_mistrals(pair, backend):
    theirs, ours = pair
    use_backend(ours, backend)
    ids = tokens()
    torch.testing.assert_close(ours(ids), theirs(ids).logits, atol=1e-5, rtol=1e-5)
    cache = KVCache()
    steps = [ours(ids[:, :9], cache=cache)]
    steps += [ours(ids[:, i : i + 1], cache=cache) for i in range(9, 17)]
    use_backend(ours, "sdpa")
    torch.testing.assert_close(torch.cat(steps, dim=1), theirs(ids).logits, atol=1e-5, rtol=1e-5)
    assert cache.windows[0].k.shape[1] == WINDOW - 1


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_through_a_ring_equals_generation_without_a_cache(beams, first):
    decoder = Decoder(ModelConfig.parse(tree(first_tokens=first), "model"))
    init_weights(decoder, 0)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(8.0 if parameter.dim() > 1 else 1.0)
    model = GatelmForCausalLM.from_decoder(decoder.eval(), pad_token_id=0)
    ids = torch.cat((torch.zeros(2, 3, dtype=torch.long), tokens(2, 9)), dim=1)
    ids[0, :3] = tokens(1, 3)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    settings = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": -1, "num_beams": beams}
    with torch.no_grad():
        cached = model.generate(ids, attention_mask=mask, return_dict_in_generate=True, **settings)
        plain = model.generate(ids, attention_mask=mask, use_cache=False, **settings)
    assert torch.equal(cached.sequences, plain)
    kept = {layer.states[0].shape[1] for layer in cached.past_key_values.layers}
    assert kept == {WINDOW - 1 + first}
    with pytest.raises(ValueError, match="tokens that have left it"):
        cached.past_key_values.crop(2)
