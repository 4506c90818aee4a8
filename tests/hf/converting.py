"""Tiny models of every format, and of this package, for the tests of conversion."""

import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)

from gatelm.hf.modeling.paper_release import PaperForCausalLM, paper_config
from gatelm.hf.modeling.wrapper import GatelmForCausalLM
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import export_model

VOCAB = 97
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
FULL = {"layer_types": ["full_attention"] * 2}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7}
ONE_EXPERT = {
    "num_experts": 1,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 8,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "linear_conv_kernel_dim": 3,
    # heads whose output is nearly zero are not blown up, with their rounding, by the output norm
    "rms_norm_eps": 0.01,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SHARED = {"shared_expert_intermediate_size": 16}
PAPER = {"qkv_bias": False, "use_qk_norm": True, "rope_theta": 50_000.0}
SOURCES = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True, "rope_theta": 50_000.0}),
    "llama-bias": ("llama", {"attention_bias": True}),
    "mistral": ("mistral", {"sliding_window": 7}),
    "qwen2": ("qwen2", {"head_dim": 8, **WINDOWS, "use_sliding_window": True}),
    "qwen3": ("qwen3", {}),
    "qwen3_next-dense": ("qwen3_next", {**FULL, "num_experts": 0, "mlp_only_layers": [0, 1]}),
    "qwen3_next": ("qwen3_next", {**FULL, **ONE_EXPERT, "partial_rotary_factor": 1.0}),
    "qwen3_5_text": ("qwen3_5_text", {**FULL, "partial_rotary_factor": 1.0}),
    "qwen3_5_text-quarter": ("qwen3_5_text", {**FULL, "tie_word_embeddings": True}),
    "qwen3_next-hybrid": ("qwen3_next", {**LINEAR, **EXPERTS, **SHARED, "num_hidden_layers": 4}),
    "qwen3_next-mixed": (
        "qwen3_next",
        {
            **LINEAR,
            **EXPERTS,
            **SHARED,
            "norm_topk_prob": False,
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "mlp_only_layers": [1],
        },
    ),
    "qwen3_5_text-hybrid": ("qwen3_5_text", {**LINEAR, "num_hidden_layers": 4}),
    "qwen3_5_moe_text": (
        "qwen3_5_moe_text",
        {**LINEAR, **EXPERTS, **SHARED, "full_attention_interval": 2},
    ),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "norm_topk_prob": True}),
    "qwen3_moe-mixed": (
        "qwen3_moe",
        {**EXPERTS, "mlp_only_layers": [0], "sliding_window": 7, "use_sliding_window": True},
    ),
    "paper-element": ("paper", {**PAPER, "elementwise_attn_output_gate": True}),
    "paper-head": (
        "paper",
        {**PAPER, "headwise_attn_output_gate": True, "tie_word_embeddings": True},
    ),
    "afmoe": ("afmoe", {"num_dense_layers": 2, **WINDOWS}),
    "afmoe-mup": ("afmoe", {"num_dense_layers": 2, **WINDOWS, "mup_enabled": True}),
    "lfm3": (
        "lfm3",
        {
            **WINDOWS,
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": 10_000.0}
                for kind in ("full_attention", "sliding_attention")
            },
        },
    ),
    "lfm3-proportional": ("lfm3", WINDOWS),
    "step3p7": ("step3p7", {**WINDOWS, "num_sliding_attention_heads": 6}),
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def build(name, seed=0):
    """A model of transformers with random weights, norms and biases too."""
    family, changes = SOURCES[name]
    if family != "paper" and family not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {family}")
    settings = {**SIZES, **changes}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if family == "paper":
            tree = {"model_type": "qwen3", **settings}
            model = PaperForCausalLM(paper_config(tree, "test"))
        elif family == "step3p7":
            text = {**settings, "mlp_layer_types": ["dense"] * 2}
            config = AutoConfig.for_model("step3p7", text_config=text, vision_config=VISION)
            model = AutoModelForImageTextToText.from_config(config)
        else:
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.empty_like(parameter).normal_(0.0, 0.2, generator=generator)
            if key.endswith("A_log"):
                # decays by which transformers' chunked form loses no digits
                parameter.zero_()
            parameter.add_(noise) if parameter.dim() == 1 else parameter.copy_(noise)
        for key, tensor in model.state_dict().items():
            one_expert = settings.get("num_experts") == 1
            if one_expert and key.endswith("shared_expert.down_proj.weight"):
                tensor.zero_()
    return model.eval()


def save(name, folder, **settings):
    """The model of `build` as a folder."""
    build(name).save_pretrained(folder, **settings)
    return folder


GATELM = {
    "vocab_size": VOCAB,
    "hidden_dim": 32,
    "num_layers": 2,
    "layer": {
        "mixer": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "qk_norm": {}},
        "ffn": {"ffn_dim": 48},
        "gates": ["sdpa-element"],
    },
}


def gatelm_tree(gates=("sdpa-element",), mixer=None, **changes):
    """The config of a model that every gated format can express, changed."""
    layer = {
        **GATELM["layer"],
        "gates": list(gates),
        "mixer": {**GATELM["layer"]["mixer"], **(mixer or {})},
    }
    return {**GATELM, "layer": {**layer, **changes.pop("layer", {})}, **changes}


EPS = {"eps": 0.01}
"""Outputs that are nearly zero are not blown up, with their rounding."""
DELTA = {
    "kind": "delta",
    "num_heads": 4,
    "num_key_heads": 2,
    "head_dim": 6,
    "value_dim": 10,
    "out_norm": EPS,
}


def hybrid_tree(ffn=None, attention=None, **changes):
    """The config of two layers of Gated DeltaNet around one of gated attention."""
    mixer = {**GATELM["layer"]["mixer"], "qk_norm": EPS, **(attention or {})}
    layer = {
        "mixer": DELTA,
        "ffn": ffn or GATELM["layer"]["ffn"],
        "gates": ["sdpa-silu-gate"],
        "norm": EPS,
    }
    set_ = {"mixer": mixer, "gates": ["sdpa-element"]}
    tree = {**GATELM, "num_layers": 3, "layer": layer, "final_norm": EPS}
    return {**tree, "layer_overrides": [{"layers": "1::2", "set": set_}], **changes}


def moe(shared=True):
    """The config of a small mixture of experts."""
    ffn = {"kind": "moe", "num_experts": 4, "top_k": 2, "ffn_dim": 24}
    return {**ffn, "shared": {"ffn_dim": 16}} if shared else ffn


def gatelm_folder(folder, tree=None, seed=0):
    """A folder of this package whose norms are not at their start."""
    model = Decoder(ModelConfig.parse(tree or gatelm_tree(), "model"))
    init_weights(model, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.empty_like(parameter).normal_(0.0, 0.2, generator=generator)
            # 1/64 steps near 1, so that 1 can be subtracted without rounding
            noise = (noise * 64).round() / 64 if "norm" in name else noise
            parameter.add_(noise) if parameter.dim() == 1 else parameter.copy_(noise)
    export_model(folder, model, None, {})
    return folder


def inside_transformers(tree):
    """A model inside transformers, with weights so large that its logits differ."""
    decoder = Decoder(ModelConfig.parse(tree, "model"))
    init_weights(decoder, 0)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(8.0 if parameter.dim() > 1 else 1.0)
    return GatelmForCausalLM.from_decoder(decoder.eval(), pad_token_id=0)
