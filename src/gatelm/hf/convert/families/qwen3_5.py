"""Qwen3.5's text models: a gate per channel packed into q_proj, Gated DeltaNet layers."""

from __future__ import annotations

from typing import Any

from gatelm.hf.convert.families.qwen import EXPERT_KEYS, write_experts
from gatelm.hf.convert.formats.format import Fact, Format
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.mixers.delta import GatedDeltaConfig
from gatelm.nn.model import ModelConfig

LLAMA_CPP = "ggml-org/llama.cpp, qwen3next.cpp at 02ebd8f7"
MLX = "ml-explore/mlx-lm at d78bf58e"

_LINEAR_KEYS = (
    "linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim linear_num_key_heads "
    "linear_num_value_heads full_attention_interval layer_types attention_bias "
    "partial_rotary_factor mamba_ssm_dtype output_gate_type attn_output_gate "
    "mtp_num_hidden_layers mtp_use_dedicated_embeddings"
)


class HybridFormat(Format):
    """Base of the formats of Qwen3.5 and Qwen3-Next."""

    keys = _LINEAR_KEYS
    left_out = (*Format.left_out, r"^mtp\.")
    norm = "zero_centred"
    gates = ("element",)
    layout = "per_query_head"
    partial_rotary = True

    def config_keys(self, cfg: ModelConfig) -> dict[str, Any]:
        """Return the keys of layer types, Gated DeltaNet, and experts if there are any."""
        mixers = [layer.mixer for layer in cfg.layers()]
        full = [isinstance(mixer, AttentionConfig) for mixer in mixers]
        tree: dict[str, Any] = {
            "layer_types": ["full_attention" if one else "linear_attention" for one in full],
        }
        interval = full.index(True) + 1
        if full == [(index + 1) % interval == 0 for index in range(len(full))]:
            tree["full_attention_interval"] = interval
        delta = next((mixer for mixer in mixers if isinstance(mixer, GatedDeltaConfig)), None)
        if delta is not None:
            tree |= {
                "linear_conv_kernel_dim": delta.conv_tokens,
                "linear_key_head_dim": delta.key_width(cfg.hidden_dim),
                "linear_num_key_heads": delta.key_heads,
                "linear_num_value_heads": delta.num_heads,
                "linear_value_head_dim": delta.value_width(cfg.hidden_dim),
            }
        return tree if self.experts == "never" else {**tree, **write_experts(cfg)}


class Qwen35Format(HybridFormat):
    """Format of dense Qwen3.5 text models."""

    name = model_type = "qwen3_5_text"
    label = "Qwen3.5 text"
    architecture = "Qwen3_5ForCausalLM"
    notes = "Gated DeltaNet layers too"
    delta = "apart"

    def engines(self) -> tuple[Fact, ...]:
        """Return what is known of transformers, and of other engines by their sources."""
        return (
            *super().engines(),
            self.fact(
                "vLLM",
                "loads",
                "the text-only architecture is registered since July 2026; ties the head",
                "vllm-project/vllm#50210",
            ),
            self.fact("SGLang", "not known", "not looked at"),
            self.fact(
                "llama.cpp",
                "not known",
                "it has a qwen35 graph; whether its converter takes all-full-attention text "
                "models was not looked at",
                LLAMA_CPP,
            ),
            self.fact(
                "MLX-LM",
                "loads wrongly",
                "it adds the 1 of the norms only when a convolution tensor is there, which a "
                "model without linear attention has not",
                MLX,
            ),
        )


class Qwen35MoeFormat(HybridFormat):
    """Format of Qwen3.5 text models with a mixture of experts in every layer."""

    name = model_type = "qwen3_5_moe_text"
    label = "Qwen3.5 text with experts"
    architecture = "Qwen3_5MoeForCausalLM"
    keys = f"{_LINEAR_KEYS} {EXPERT_KEYS} shared_expert_intermediate_size"
    notes = "the same, with a mixture of experts in every layer"
    delta = "apart"
    experts = "all layers"
    shared_expert = "required"
