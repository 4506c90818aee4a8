"""LFM3: a gate per head, norms around every branch; only layers of attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gatelm.config import ConfigError
from gatelm.hf.convert.formats.fold import gather_order, reorder_heads, rotated_tensors
from gatelm.hf.convert.formats.format import Format, GateForm
from gatelm.hf.convert.formats.layers import GATE
from gatelm.hf.convert.formats.pieces import State
from gatelm.hf.convert.formats.tensors import ATTENTION, Names
from gatelm.nn.model import ModelConfig


class Lfm3Format(Format):
    """Format of LFM3's attention layers; its convolutions are refused."""

    name = model_type = "lfm3"
    label = "LFM3 (attention layers)"
    architecture = "Lfm3ForCausalLM"
    names = Names(
        {
            **ATTENTION,
            # its module is g_proj, but transformers reads and writes gate_proj
            GATE: "self_attn.gate_proj",
            "ffn.gate_proj": "feed_forward.w1",
            "ffn.up_proj": "feed_forward.w3",
            "ffn.down_proj": "feed_forward.w2",
            "attn_norm": "operator_norm",
            "attn_post_norm": "post_operator_norm",
            "ffn_norm": "ffn_norm",
            "ffn_post_norm": "post_ffn_norm",
        },
        {
            "embedding": "model.embed_tokens",
            "final_norm": "model.embedding_norm",
            "head": "lm_head",
        },
    )
    keys = (
        "attention_bias conv_bias conv_L_cache layer_types norm_eps sliding_window "
        "use_attention_gate use_sandwich_norm"
    )
    notes = "attention layers; written with full rotary positions only"
    gates = ("none", "head")
    biases = ("none", "all")
    windows = "by layer"
    rope_kinds = ("full_attention", "sliding_attention")
    sandwich = True

    def check(self, c: Any, where: str) -> None:
        """Refuse models without norms after the branches."""
        if not c.use_sandwich_norm:
            raise ConfigError(f"{where}: use_sandwich_norm false is not read")

    def gate_form(self, c: Any) -> GateForm:
        """Return the form of the gate: per head, or none."""
        return "head" if c.use_attention_gate else "none"

    def config_keys(self, cfg: ModelConfig) -> dict[str, Any]:
        """Return the keys of the gate and of the norms."""
        return {
            "norm_eps": cfg.layer.norm.eps,
            "use_attention_gate": bool(cfg.layer.gates),
            "use_sandwich_norm": True,
        }

    def adjust(self, state: State, cfg: ModelConfig, tree: Mapping[str, Any]) -> list[str]:
        """Reorder channels: partial rotary positions leave those in the middle of a head still in
        LFM3, those at its end in this package."""
        notes: list[str] = []
        for index, layer in enumerate(cfg.layers()):
            rope = layer.attention.rope
            if rope is None or rope.partial_factor == 1.0:
                continue
            order = gather_order(layer, cfg.hidden_dim)
            for name in rotated_tensors(layer, f"layers.{index}."):
                state[name] = reorder_heads(state[name], order)
            notes = ["proportional rotary positions: channels of q and k reordered"]
        return notes
