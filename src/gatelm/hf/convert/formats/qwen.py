"""What Qwen's formats have beside attention and dense networks: Gated DeltaNet and experts."""

from __future__ import annotations

from typing import Any, TypeVar

from gatelm.config import Config, ConfigError
from gatelm.hf.convert.formats.layers import ACTIVATIONS
from gatelm.hf.convert.formats.rules import Format
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.block import LayerConfig
from gatelm.nn.ffn.config import FFNConfig, MoEConfig, SwiGLUConfig
from gatelm.nn.ffn.moe import SharedExpertConfig
from gatelm.nn.mixers.delta import GatedDeltaConfig
from gatelm.nn.model import ModelConfig
from gatelm.nn.norm import NormConfig

F = TypeVar("F", bound=Config)

SHARED_EXPERT = 64
"""Width of the shared expert of zeros: engines expect one, and divide it among devices."""


def read_delta(c: Any, where: str) -> GatedDeltaConfig:
    """Raises ConfigError for settings that cannot be expressed."""
    if ACTIVATIONS.get(c.hidden_act) != "silu":
        raise ConfigError(
            f"{where}: hidden_act {c.hidden_act!r}: of Gated DeltaNet's convolution, which has "
            "silu here"
        )
    gate = getattr(c, "output_gate_type", None)
    if gate not in (None, "swish", "silu"):
        raise ConfigError(f"{where}: output_gate_type {gate!r}: transformers' code computes swish")
    return GatedDeltaConfig(
        num_heads=c.linear_num_value_heads,
        num_key_heads=c.linear_num_key_heads,
        head_dim=c.linear_key_head_dim,
        value_dim=c.linear_value_head_dim,
        conv_tokens=c.linear_conv_kernel_dim,
        out_norm=NormConfig(eps=c.rms_norm_eps),
    )


def read_ffn(c: Any, fmt: Format, index: int, where: str) -> FFNConfig:
    """Dense or a mixture; raises ConfigError for an activation that cannot be expressed."""
    # LFM3 has no such key: its code says silu
    activation = getattr(c, "hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise ConfigError(f"{where}: hidden_act {activation!r} cannot be expressed")
    activation = ACTIVATIONS[activation]
    if not is_sparse(c, fmt, index):
        return SwiGLUConfig(ffn_dim=c.intermediate_size, activation=activation)
    if is_one_expert(c, fmt):
        return SwiGLUConfig(ffn_dim=c.moe_intermediate_size, activation=activation)
    shared = None
    if fmt.shared_expert == "required":
        shared = SharedExpertConfig(ffn_dim=c.shared_expert_intermediate_size)
    return MoEConfig(
        num_experts=c.num_experts,
        top_k=c.num_experts_per_tok,
        ffn_dim=c.moe_intermediate_size,
        activation=activation,
        weights="normalised" if getattr(c, "norm_topk_prob", True) else "softmax",
        shared=shared,
    )


def is_sparse(c: Any, fmt: Format, index: int) -> bool:
    """Whether a layer of Qwen's formats has a mixture of experts."""
    if fmt.experts != "any layer":
        return fmt.experts == "all layers"
    step = (index + 1) % c.decoder_sparse_step == 0
    return index not in c.mlp_only_layers and c.num_experts > 0 and step


def is_one_expert(c: Any, fmt: Format) -> bool:
    """Whether mixtures are dense networks in the only form that some engines take."""
    return fmt.name == "qwen3_next" and c.num_experts == 1


def check_windows(c: Any, where: str) -> None:
    """Raises ConfigError for a Qwen3-Next with windows."""
    if getattr(c, "use_sliding_window", False):
        raise ConfigError(f"{where}: use_sliding_window: the family's code has no windows")


def write_hybrid(cfg: ModelConfig) -> dict[str, Any]:
    """Keys for which layers are which, and for those of Gated DeltaNet."""
    mixers = [layer.mixer for layer in cfg.layers()]
    full = [isinstance(mixer, AttentionConfig) for mixer in mixers]
    tree: dict[str, Any] = {
        "attention_bias": False,
        "layer_types": ["full_attention" if one else "linear_attention" for one in full],
    }
    interval = full.index(True) + 1
    if full == [(index + 1) % interval == 0 for index in range(len(full))]:
        tree["full_attention_interval"] = interval
    for mixer in mixers:
        if isinstance(mixer, GatedDeltaConfig):
            tree |= {
                "linear_conv_kernel_dim": mixer.conv_tokens,
                "linear_key_head_dim": mixer.key_width(cfg.hidden_dim),
                "linear_num_key_heads": mixer.key_heads,
                "linear_num_value_heads": mixer.num_heads,
                "linear_value_head_dim": mixer.value_width(cfg.hidden_dim),
            }
            break
    return tree


def write_experts(cfg: ModelConfig) -> dict[str, Any]:
    """Keys for mixtures of experts; a dense model is written as one expert."""
    found = _ffns(cfg, MoEConfig)
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


def activation_of(layer: LayerConfig) -> str:
    """Of a layer's feed-forward network, dense or of experts."""
    ffn = layer.ffn
    return (ffn if isinstance(ffn, MoEConfig) else layer.dense_ffn).activation


def ffn_dim(cfg: ModelConfig) -> int:
    """Of the dense layers; that of one expert where there are none, which nothing reads then."""
    widths = [ffn.ffn_dim for ffn in _ffns(cfg, SwiGLUConfig)]
    return (widths or [ffn.ffn_dim for ffn in _ffns(cfg, MoEConfig)])[0]


def _ffns(cfg: ModelConfig, kind: type[F]) -> list[F]:
    return [layer.ffn for layer in cfg.layers() if isinstance(layer.ffn, kind)]
