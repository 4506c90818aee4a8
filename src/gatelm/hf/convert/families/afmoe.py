"""AFMoE (Trinity): a gate per channel, norms around every branch, rotary positions in windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gatelm.config import ConfigError
from gatelm.hf.convert.formats.format import Format
from gatelm.hf.convert.formats.layers import GATE
from gatelm.hf.convert.formats.pieces import State
from gatelm.hf.convert.formats.tensors import ATTENTION, MLP, Names
from gatelm.nn.model import ModelConfig


class AfmoeFormat(Format):
    """Format of AFMoE's dense layers; its mixtures of experts are refused."""

    name = model_type = "afmoe"
    label = "AFMoE (dense layers)"
    architecture = "AfmoeForCausalLM"
    names = Names(
        {
            **ATTENTION,
            **MLP,
            GATE: "self_attn.gate_proj",
            "attn_norm": "input_layernorm",
            "attn_post_norm": "post_attention_layernorm",
            "ffn_norm": "pre_mlp_layernorm",
            "ffn_post_norm": "post_mlp_layernorm",
        }
    )
    keys = (
        "attention_bias global_attn_every_n_layers layer_types mup_enabled sliding_window "
        "num_dense_layers num_experts num_experts_per_tok num_shared_experts "
        "moe_intermediate_size route_scale n_group num_expert_groups num_limited_groups "
        "topk_group score_func route_norm load_balance_coeff use_grouped_mm"
    )
    notes = "dense layers"
    gates = ("element",)
    biases = ("none", "all")
    windows = "by layer"
    rope = "windowed layers"
    sandwich = True

    def check(self, c: Any, where: str) -> None:
        """Refuse mixtures of experts, and a scaled embedding that is the head, too."""
        if c.num_dense_layers < c.num_hidden_layers:
            raise ConfigError(
                f"{where}: layers {c.num_dense_layers} to {c.num_hidden_layers - 1} are mixtures "
                "of experts, which cannot be expressed; only dense layers can"
            )
        if c.mup_enabled and c.tie_word_embeddings:
            raise ConfigError(
                f"{where}: mup_enabled scales the embedding but not the head, which cannot be tied "
                "then"
            )

    def config_keys(self, cfg: ModelConfig) -> dict[str, Any]:
        """Return the keys for dense layers in the whole model and an embedding without a factor."""
        return {"num_dense_layers": cfg.num_layers, "mup_enabled": False}

    def adjust(self, state: State, cfg: ModelConfig, tree: Mapping[str, Any]) -> list[str]:
        """Put the factor on the embedding into its weights."""
        if not tree.get("mup_enabled"):
            return []
        state["embedding.weight"] = state["embedding.weight"] * cfg.hidden_dim**0.5
        return ["mup_enabled: the embedding is multiplied by sqrt(hidden_size)"]
