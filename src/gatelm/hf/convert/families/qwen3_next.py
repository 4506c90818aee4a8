"""Qwen3-Next: Qwen3.5's layers, with mixtures of experts in some layers, and an untied head."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from gatelm.config import ConfigError
from gatelm.hf.convert.families.qwen import EXPERT_KEYS, is_expert_layer
from gatelm.hf.convert.families.qwen3_5 import LLAMA_CPP, MLX, HybridFormat
from gatelm.hf.convert.formats.format import Fact
from gatelm.hf.convert.formats.pieces import Inert, Piece
from gatelm.hf.convert.formats.tensors import pieces
from gatelm.nn.model import ModelConfig

_ONE_EXPERT = {
    f"ffn.{name}": f"mlp.experts.0.{name}" for name in ("gate_proj", "up_proj", "down_proj")
}
"""A dense feed-forward network as the one expert of a mixture, the only form some engines take."""


class Qwen3NextFormat(HybridFormat):
    """Format of Qwen3-Next; a dense model is written as mixtures of one expert."""

    name = model_type = "qwen3_next"
    label = "Qwen3-Next"
    architecture = "Qwen3NextForCausalLM"
    keys = f"{HybridFormat.keys} {EXPERT_KEYS} shared_expert_intermediate_size use_sliding_window"
    notes = (
        "Gated DeltaNet layers, mixtures of experts; a dense model is written as one expert; head "
        "untied"
    )
    delta = "grouped"
    experts = "any layer"
    shared_expert = "required"
    one_expert = "dense"
    heads = ("untied",)

    def check(self, c: Any, where: str) -> None:
        """Refuse windows."""
        if getattr(c, "use_sliding_window", False):
            raise ConfigError(f"{where}: use_sliding_window: the family's code has no windows")

    def is_sparse(self, c: Any, index: int) -> bool:
        """Whether a layer is a mixture."""
        return is_expert_layer(c, index)

    def pieces(self, cfg: ModelConfig, tree: Mapping[str, Any], layout: str | None) -> list[Piece]:
        """Return the map of tensors, where one expert stands for a dense network."""
        c = SimpleNamespace(
            decoder_sparse_step=int(tree.get("decoder_sparse_step", 1)),
            mlp_only_layers=list(tree.get("mlp_only_layers") or ()),
            num_experts=int(tree.get("num_experts", 512)),
        )
        if c.num_experts != 1:
            return super().pieces(cfg, tree, layout)
        sparse = [index for index in range(cfg.num_layers) if self.is_sparse(c, index)]
        found = pieces(
            cfg,
            self.names,
            layout=layout,
            delta=self.delta,
            renamed=lambda index: _ONE_EXPERT if index in sparse else {},
        )
        width = int(tree.get("shared_expert_intermediate_size", 512))
        for index in sparse:
            found += _inert(f"model.layers.{index}.mlp", cfg.hidden_dim, width)
        return found

    def engines(self) -> tuple[Fact, ...]:
        """Return what is known of transformers, and of other engines by their sources."""
        return (
            *super().engines(),
            self.fact(
                "vLLM",
                "loads",
                "it refuses a Qwen3-Next without experts, so the feed-forward network is written "
                "as one expert; it makes its own head, so the head is untied",
                "vllm-project/vllm qwen3_next.py at 002d6073, #41087",
            ),
            self.fact(
                "SGLang",
                "loads",
                "builds every layer as a mixture, which the one-expert form is",
                "sgl-project/sglang qwen3_next.py at 0201bc80",
            ),
            self.fact(
                "llama.cpp",
                "loads",
                "same row order; it refuses zero experts, which the one-expert form avoids",
                LLAMA_CPP,
            ),
            self.fact(
                "MLX-LM",
                "loads",
                "the one-expert form has the tensor by which it recognises norms; it reads "
                "full_attention_interval, which is written as 1",
                MLX,
            ),
        )


def _inert(mlp: str, dim: int, width: int) -> list[Inert]:
    """Return the tensors of a mixture of one expert that do not change its output."""
    return [
        Inert(f"{mlp}.gate.weight", (1, dim), "one expert is always chosen, with weight 1"),
        Inert(f"{mlp}.shared_expert.gate_proj.weight", (width, dim), "its output is zero"),
        Inert(f"{mlp}.shared_expert.up_proj.weight", (width, dim), "its output is zero"),
        Inert(f"{mlp}.shared_expert.down_proj.weight", (dim, width)),
        Inert(f"{mlp}.shared_expert_gate.weight", (1, dim), "it scales zero"),
    ]
