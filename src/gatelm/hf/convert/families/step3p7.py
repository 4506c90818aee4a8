"""Step 3.7: the text part of a vision model, with a gate per head; read only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gatelm.config import ConfigError
from gatelm.hf.convert.formats.format import Format
from gatelm.hf.convert.formats.layers import GATE
from gatelm.hf.convert.formats.tensors import LLAMA_NAMES, Names


class Step3p7Format(Format):
    """Format of Step 3.7's dense layers; its mixtures of experts are refused."""

    name = model_type = "step3p7"
    label = "Step 3.7 (dense layers of the text part)"
    architecture = "Step3p7ForConditionalGeneration"
    names = Names({**LLAMA_NAMES.layer, GATE: "self_attn.g_proj"})
    keys = (
        "attention_bias mlp_bias gating layer_types mlp_layer_types moe_intermediate_size "
        "moe_router_scaling_factor mtp_layer_types mtp_mlp_layer_types n_routed_experts "
        "num_experts_per_tok num_nextn_predict_layers num_sliding_attention_heads "
        "per_layer_config query_pre_attn_scalar share_expert_dim sliding_window swiglu_limits "
        "swiglu_limits_shared use_bidirectional_attention"
    )
    left_out = (*Format.left_out, r"^vision_model\.", r"^vit_large_projector\.", r"^model\.vision")
    notes = "dense layers; the vision part is left out and named"
    written = False
    norm = "zero_centred"
    gates = ("head",)
    biases = ("none", "all")
    windows = "by layer"
    partial_rotary = True

    def text_config(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Return the config of the text part."""
        return dict(tree.get("text_config") or {})

    def library_config(self, text: Mapping[str, Any]) -> Any:
        """Return transformers' config of the text part, whose layers may differ."""
        from transformers import Step3p7TextConfig

        text = {key: value for key, value in text.items() if key != "model_type"}
        config = Step3p7TextConfig.from_dict(text)
        config.allow_global_per_layer_attribute_access = True
        return config

    def check(self, c: Any, where: str) -> None:
        """Refuse mixtures of experts, biases and limits of the feed-forward network, and gates
        other than per head."""
        sparse = [i for i, kind in enumerate(c.mlp_layer_types) if kind != "dense"]
        if sparse:
            raise ConfigError(
                f"{where}: layers {sparse[0]} ... are mixtures of experts, which cannot be "
                "expressed; only dense layers can"
            )
        limits = c.swiglu_limits_shared or ()
        if any(limits) or c.mlp_bias or c.use_bidirectional_attention:
            raise ConfigError(
                f"{where}: swiglu_limits_shared, mlp_bias or use_bidirectional_attention is set, "
                "which cannot be expressed"
            )
        if c.query_pre_attn_scalar != c.head_dim:
            raise ConfigError(f"{where}: query_pre_attn_scalar other than head_dim is not read")
        if c.gating not in (True, "per-head"):
            raise ConfigError(
                f"{where}: gating {c.gating!r}: Step's code computes per-head gates only"
            )

    def num_heads(self, c: Any, layer_type: str) -> int:
        """Return the number of query heads, which may be another in windowed layers."""
        sliding = getattr(c, "num_sliding_attention_heads", None)
        return sliding if layer_type == "sliding_attention" and sliding else c.num_attention_heads
