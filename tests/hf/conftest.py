import logging

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from gatelm.analysis.probe.protocol import Observer
from gatelm.hf.probe.hf_probe import HFProbe
from helpers import random_ids

VOCAB = 97
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    **SPECIAL,
}
GPT_SIZES = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    **SPECIAL,
}
HYBRID = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "full_attention"],
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ALIKE = {"vocab_size": VOCAB, "hidden_size": 32, "num_attention_heads": 4, **SPECIAL}
FAMILIES = {
    "llama": SIZES,
    "mistral": {**SIZES, "sliding_window": 7, "head_dim": 8},
    "qwen2": SIZES,
    "qwen3": {**SIZES, "head_dim": 16},
    "gemma2": {
        **SIZES,
        "head_dim": 8,
        "sliding_window": 7,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 5,
    },
    "gemma3_text": {
        **SIZES,
        "head_dim": 8,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
    "gpt2": GPT_SIZES,
    "gpt_neox": {k: v for k, v in SIZES.items() if k != "num_key_value_heads"},
    "opt": {
        **ALIKE,
        "num_hidden_layers": 3,
        "ffn_dim": 48,
        "max_position_embeddings": 256,
        "word_embed_proj_dim": 32,
    },
    "phi3": SIZES,
    "granite": {**SIZES, "logits_scaling": 3.0, "attention_multiplier": 0.3},
    "cohere": {**SIZES, "logit_scale": 0.3},
    "gpt_oss": {
        **SIZES,
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "deepseek_v3": {
        **SIZES,
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "qwen3_next": {**SIZES, "head_dim": 8, "shared_expert_intermediate_size": 16, **MOE, **HYBRID},
    "qwen3_5_text": {**SIZES, "head_dim": 8, **HYBRID},
    "afmoe": {
        **SIZES,
        "head_dim": 8,
        "num_dense_layers": 1,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        **MOE,
    },
    "laguna": {
        **SIZES,
        "head_dim": 8,
        "shared_expert_intermediate_size": 16,
        "layer_types": ["full_attention"] * 3,
        **MOE,
    },
    "lfm3": {**SIZES, "layer_types": ["full_attention"] * 3},
    "hrm_text": {
        **{k: v for k, v in SIZES.items() if k != "num_hidden_layers"},
        "head_dim": 8,
        "H_cycles": 2,
        "L_cycles": 1,
        "num_layers_per_stack": 1,
    },
    "llama4_text": SIZES,
    "falcon": {**ALIKE, "num_hidden_layers": 3, "alibi": False},
    "bloom": {"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 3, "n_head": 4, **SPECIAL},
    "mpt": {"vocab_size": VOCAB, "d_model": 32, "n_layers": 3, "n_heads": 4, **SPECIAL},
}


def build(family, seed=0, **changes):
    """A tiny model with random weights large enough for attention that is not uniform."""
    if family not in CONFIG_MAPPING:
        pytest.skip(f"transformers {transformers.__version__} has no {family}")
    settings = {**FAMILIES[family], **changes}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 or name.endswith(("sinks", "bias")):
                parameter.normal_(0.0, 0.25, generator=generator)
    return model.eval()


class Kept(Observer):
    """Keeps everything it is shown."""

    def __init__(self):
        self.calls, self.matrices, self.stream, self.gates = {}, {}, {}, {}
        self.before, self.after, self.branches = {}, {}, {}

    def attention(self, call):
        assert call.layer not in self.calls
        self.calls[call.layer] = call

    def weights(self, layer, weights, mask):
        self.matrices[layer] = (weights.clone(), mask)

    def residual(self, layer, h):
        assert layer not in self.stream
        self.stream[layer] = h.clone()

    def gate(self, layer, site, scores):
        assert site == "sdpa"
        self.gates[layer] = scores.clone()

    def heads(self, layer, before, after):
        self.before[layer], self.after[layer] = before.clone(), after.clone()

    def branch(self, layer, y):
        self.branches[layer] = y.clone()


@pytest.fixture(autouse=True)
def _quiet_transformers(monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "disabled", True)


@pytest.fixture(scope="session")
def models():
    """Models by family, built once; a test must leave them as they were."""
    built = {}

    def get(family):
        if family not in built:
            built[family] = build(family)
        return built[family]

    return get


@pytest.fixture(scope="session")
def probes(models):
    """Probes by family, on the same models."""
    built = {}

    def get(family):
        if family not in built:
            built[family] = HFProbe(models(family), family)
        return built[family]

    return get


@pytest.fixture
def tokens():
    """Three rows of 21 tokens, none of them special."""
    return random_ids(VOCAB, 3, 21, seed=5, special=3)


@pytest.fixture
def kept():
    return Kept()


@pytest.fixture
def fresh():
    """A model of its own, for tests that change it."""
    return build
