"""The checkpoints released with arXiv 2505.06708, without their modelling code.

They are Qwen3 models whose q_proj also makes the gate's logits, grouped per key/value head: for
each group first its queries, then its gates (`per_kv_group` in `families`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

from gatelm.config import ConfigError
from gatelm.hf.probe.families import paper_layout
from gatelm.nn.shapes import Float, Tensor

KEYS = ("headwise_attn_output_gate", "elementwise_attn_output_gate")


def is_paper_release(tree: Mapping[str, Any]) -> bool:
    """Whether a config.json has the release's keys; its ungated arm has them too, both false."""
    return tree.get("model_type") == "qwen3" and any(key in tree for key in KEYS)


def paper_config(tree: Mapping[str, Any], where: str) -> Qwen3Config:
    """Return transformers' config for a config.json of the release.

    Raises:
        ConfigError: for settings of its modelling code that Qwen3 of transformers does not have.
    """
    if tree.get("use_qk_norm", True) is not True:
        raise ConfigError(
            f"{where}: use_qk_norm false cannot be read; only models with QK-norm can"
        )
    if tree.get("qkv_bias", False):
        raise ConfigError(f"{where}: qkv_bias true cannot be read; only models without can")
    dropped = ("auto_map", "architectures", "use_qk_norm", "qkv_bias")
    return Qwen3Config.from_dict({k: v for k, v in tree.items() if k not in dropped})


class GroupGatedAttention(Qwen3Attention):
    """Attention of Qwen3 with the gate of the release."""

    def __init__(self, config: Qwen3Config, layer_idx: int):
        super().__init__(config, layer_idx)
        layout = paper_layout(config)
        assert layout is not None
        self.num_heads: int = config.num_attention_heads
        self.num_groups: int = config.num_key_value_heads or config.num_attention_heads
        self.gate_width = 1 if layout.granularity == "head" else self.head_dim
        rows = self.num_heads * (self.head_dim + self.gate_width)
        self.q_proj = nn.Linear(config.hidden_size, rows, bias=config.attention_bias)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        hidden_states: Float[Tensor, "B T D"],
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Float[Tensor, "B T D"], Tensor | None]:
        """See `Qwen3Attention.forward`."""
        shape = hidden_states.shape[:-1]
        group = self.num_heads // self.num_groups
        packed = self.q_proj(hidden_states).unflatten(-1, (self.num_groups, -1))
        q, gate = packed.split([group * self.head_dim, group * self.gate_width], dim=-1)
        q = self.q_norm(q.reshape(*shape, self.num_heads, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(hidden_states).unflatten(-1, (self.num_groups, -1)))
        v = self.v_proj(hidden_states).unflatten(-1, (self.num_groups, -1)).transpose(1, 2)
        q, k = apply_rotary_pos_emb(q, k.transpose(1, 2), *position_embeddings)
        # transformers renamed past_key_values to cache in 5.24
        caches = [kwargs.pop(name, None) for name in ("cache", "past_key_values")]
        for cache in caches:
            if cache is not None:
                k, v = cache.update(k, v, self.layer_idx)
        name = self.config._attn_implementation or "eager"
        attend = AttentionInterface().get_interface(name, eager_attention_forward)
        y, weights = attend(self, q, k, v, attention_mask, scaling=self.scaling, **kwargs)
        y = y.reshape(*shape, self.num_heads, self.head_dim)
        y = y * torch.sigmoid(gate.reshape(*shape, self.num_heads, self.gate_width))
        return self.o_proj(y.flatten(-2)), weights


class PaperForCausalLM(Qwen3ForCausalLM):
    """Qwen3 with the release's gate in every layer; weights load by the release's own names."""

    def __init__(self, config: Qwen3Config):
        super().__init__(config)
        if paper_layout(config) is not None:
            for index, layer in enumerate(self.model.layers):
                layer.self_attn = GroupGatedAttention(config, index)
