"""Config keys that several of Qwen's families share."""

from __future__ import annotations

from typing import Any

from gatelm.hf.convert.formats.layers import ffn_dim, ffns
from gatelm.nn.ffn.config import MoEConfig
from gatelm.nn.model import ModelConfig

WINDOW_KEYS = "sliding_window use_sliding_window max_window_layers layer_types"
EXPERT_KEYS = (
    "decoder_sparse_step mlp_only_layers moe_intermediate_size norm_topk_prob num_experts "
    "num_local_experts num_experts_per_tok"
)

SHARED_EXPERT = 64
"""Width of the shared expert of zeros: engines expect one, and divide it among devices."""


def is_expert_layer(c: Any, index: int) -> bool:
    """Whether a layer of a filled config is a mixture."""
    step = (index + 1) % c.decoder_sparse_step == 0
    return index not in c.mlp_only_layers and c.num_experts > 0 and step


def write_experts(cfg: ModelConfig) -> dict[str, Any]:
    """Write the keys of a model's mixtures; a dense model is written as one expert."""
    found = ffns(cfg, MoEConfig)
    if not found:
        return {
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "moe_intermediate_size": ffn_dim(cfg),
            "norm_topk_prob": True,
            "num_experts": 1,
            "num_experts_per_tok": 1,
            "shared_expert_intermediate_size": SHARED_EXPERT,
        }
    ffn = found[0]
    dense = [i for i, one in enumerate(cfg.layers()) if not isinstance(one.ffn, MoEConfig)]
    shared = {"shared_expert_intermediate_size": ffn.shared.ffn_dim} if ffn.shared else {}
    return {
        "decoder_sparse_step": 1,
        "mlp_only_layers": dense,
        "moe_intermediate_size": ffn.ffn_dim,
        "norm_topk_prob": ffn.weights == "normalised",
        "num_experts": ffn.num_experts,
        "num_experts_per_tok": ffn.top_k,
        **shared,
    }
