import json

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import Qwen3ForCausalLM

from gatelm.config import ConfigError
from gatelm.hf.load import open_model
from gatelm.hf.modeling.paper_release import paper_config
from gatelm.hf.probe.attention import NAME
from helpers import random_ids

HEADS, GROUPS, WIDTH, HIDDEN = 6, 2, 8, 32
GROUP = HEADS // GROUPS


def release(gate):
    """config.json as in the release, keys of its own modelling code included."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_qwen3.Qwen3ForCausalLM"},
        "model_type": "qwen3",
        "headwise_attn_output_gate": gate == "headwise",
        "elementwise_attn_output_gate": gate == "elementwise",
        "use_qk_norm": True,
        "qkv_bias": False,
        "attention_bias": False,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": GROUPS,
        "head_dim": WIDTH,
        "vocab_size": 97,
        "rope_theta": 10000.0,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def weights(seed=0):
    """Random weights of the ungated arm."""
    model = Qwen3ForCausalLM(paper_config(release(None), "here"))
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(value.shape, generator=generator) * 0.25 + (value.dim() == 1)
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"
    }


def pack(q, gates):
    """The release's layout, written out: for each group its queries' rows, then its gates'."""
    q, gates = q.view(GROUPS, GROUP * WIDTH, HIDDEN), gates.view(GROUPS, -1, HIDDEN)
    return torch.cat([torch.cat((a, b)) for a, b in zip(q, gates, strict=True)])


def write(folder, tree, tensors):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(tree))
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors")
    return folder


def gated(tensors, gates):
    """Tensors with gate rows (layer -> (rows, HIDDEN)) packed into q_proj."""
    out = dict(tensors)
    for layer, rows in gates.items():
        name = f"model.layers.{layer}.self_attn.q_proj.weight"
        out[name] = pack(tensors[name], rows)
    return out


def gate_rows(gate, seed=1):
    count = HEADS * (WIDTH if gate == "elementwise" else 1)
    generator = torch.Generator().manual_seed(seed)
    return {layer: torch.randn(count, HIDDEN, generator=generator) for layer in range(2)}


@pytest.fixture
def tokens():
    return random_ids(97, 2, 17, seed=2)


@pytest.mark.parametrize("gate", ["headwise", "elementwise"])
def test_gate_rows_of_zero_halve_the_heads(gate, tmp_path, tokens):
    """sigmoid(0) = 1/2: the ungated model with W_o halved, whatever the layout does to queries."""
    tensors = weights()
    zero = {layer: torch.zeros_like(rows) for layer, rows in gate_rows(gate).items()}
    probe, _ = open_model(write(tmp_path / "a", release(gate), gated(tensors, zero)))
    half = {k: v / 2 if k.endswith("o_proj.weight") else v for k, v in tensors.items()}
    plain, _ = open_model(write(tmp_path / "b", release(None), half))
    assert probe.implementation == plain.implementation == NAME
    assert set(probe.gate_sites) == {0, 1}
    assert plain.gate_sites == {}
    torch.testing.assert_close(probe.observe(tokens), plain.observe(tokens), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("gate", ["headwise", "elementwise"])
def test_scores_are_those_of_each_heads_own_rows(gate, tmp_path, tokens, kept):
    rows = gate_rows(gate)
    probe, _ = open_model(write(tmp_path / "a", release(gate), gated(weights(), rows)))
    inputs = []
    for layer in probe.model.model.layers:
        layer.input_layernorm.register_forward_hook(lambda m, a, output: inputs.append(output))
    probe.observe(tokens, None, kept)
    width = WIDTH if gate == "elementwise" else 1
    for layer in range(2):
        expected = F.linear(inputs[layer], rows[layer]).view(2, 17, HEADS, width).sigmoid()
        torch.testing.assert_close(kept.gates[layer], expected, atol=1e-5, rtol=1e-5)
        product = kept.before[layer] * expected
        torch.testing.assert_close(kept.after[layer], product, atol=1e-5, rtol=1e-5)
        norms = rows[layer].view(HEADS, -1).double().norm(dim=1)
        torch.testing.assert_close(probe.gate_weight_norms()[layer, "sdpa"], norms)


def test_the_ungated_arm_equals_qwen3(tmp_path, tokens):
    tensors = weights()
    probe, _ = open_model(write(tmp_path / "a", release(None), tensors))
    model = Qwen3ForCausalLM(paper_config(release(None), "here")).eval()
    model.load_state_dict({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]})
    with torch.no_grad():
        expected = model(tokens).logits
    torch.testing.assert_close(probe.logits(probe.observe(tokens)), expected, atol=1e-5, rtol=1e-5)


def test_generation_with_a_cache_gates_as_without(tmp_path, tokens):
    probe, _ = open_model(
        write(tmp_path / "a", release("elementwise"), gated(weights(), gate_rows("elementwise")))
    )
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with_cache = probe.model.generate(tokens, use_cache=True, **settings)
    without = probe.model.generate(tokens, use_cache=False, **settings)
    assert torch.equal(with_cache, without)


def test_settings_that_cannot_be_read_are_refused():
    with pytest.raises(ConfigError, match="there: use_qk_norm false"):
        paper_config({**release(None), "use_qk_norm": False}, "there")
    with pytest.raises(ConfigError, match="there: qkv_bias true"):
        paper_config({**release(None), "qkv_bias": True}, "there")
