"""Read the config.json of other formats as a `ModelConfig`; an unknown key is an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from transformers.utils import logging

from gatelm.config import ConfigError
from gatelm.hf.convert.formats.format import Format
from gatelm.hf.convert.formats.layers import ACTIVATIONS, DELTA_GATE, NATIVE_GATES
from gatelm.hf.convert.formats.rope import ORIGINAL, one_spelling, read_rope
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.block import LayerConfig
from gatelm.nn.ffn.config import FFNConfig, MoEConfig, SwiGLUConfig
from gatelm.nn.ffn.moe import SharedExpertConfig
from gatelm.nn.mixers.delta import GatedDeltaConfig
from gatelm.nn.model import InitConfig, ModelConfig
from gatelm.nn.norm import NormConfig
from gatelm.nn.overrides import compress

_SIZES = """
vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads
head_dim hidden_act rms_norm_eps tie_word_embeddings rope_parameters rope_theta rope_scaling
attention_dropout initializer_range
"""
_INERT = """
architectures model_type auto_map transformers_version torch_dtype dtype use_cache
bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id cls_token_id mask_token_id
max_position_embeddings name_or_path tokenizer_class
attn_implementation output_attentions output_hidden_states return_dict is_encoder_decoder
chunk_size_feed_forward problem_type id2label label2id pretraining_tp rope_interleaved
router_aux_loss_coef output_router_logits
"""
_ONLY = {
    "rope_interleaved": (False, None),
    "attn_output_gate": (True,),
    "is_encoder_decoder": (False,),
    "use_mrope": (False,),
}
"""Known keys that are understood at these values alone. transformers ignores some of them; other
engines do not."""


def read_config(tree: Mapping[str, Any], fmt: Format, where: str) -> ModelConfig:
    """Return the model that a config.json of a known format describes.

    Raises:
        ConfigError: for a key that is not known, and for what this package cannot express.
    """
    text = fmt.text_config(tree)
    known = {*_SIZES.split(), *_INERT.split(), *fmt.keys.split(), ORIGINAL}
    if "quantization_config" in tree:
        raise ConfigError(f"{where}: the weights are quantised; convert the unquantised model")
    if unknown := sorted(key for key in set(text) - known if not key.startswith("_")):
        raise ConfigError(
            f"{where}: not known here, so its effect is not either: {', '.join(unknown)}"
        )
    for key, values in _ONLY.items():
        if text.get(key, values[0]) not in values:
            raise ConfigError(f"{where}: {key} {json.dumps(text[key])} cannot be expressed")
    filled = _filled(one_spelling(text, where), fmt, where)
    layers = [_layer(filled, fmt, index, where) for index in range(filled.num_hidden_layers)]
    fmt.check(filled, where)
    layer, overrides = compress(layers)
    return ModelConfig.parse(
        {
            "vocab_size": filled.vocab_size,
            "hidden_dim": filled.hidden_size,
            "num_layers": filled.num_hidden_layers,
            "layer": layer.tree(),
            "layer_overrides": [o.tree() for o in overrides],
            "head": "tied" if filled.tie_word_embeddings else "untied",
            "final_norm": _norm(filled, fmt).tree(),
            "init": InitConfig(std=filled.initializer_range, residual_scale="none").tree(),
        },
        where,
    )


def _filled(text: Mapping[str, Any], fmt: Format, where: str) -> Any:
    """Fill in all of transformers' defaults."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        return fmt.library_config(text)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(f"{where}: {' '.join(lines):.300}") from None
    finally:
        logging.set_verbosity(level)


def _layer(c: Any, fmt: Format, index: int, where: str) -> LayerConfig:
    kind = fmt.layer_type(c, index)
    if kind == "linear_attention" and fmt.delta is not None:
        return LayerConfig(
            mixer=_delta(c, where),
            ffn=_ffn(c, fmt, index, where),
            gates=(DELTA_GATE,),
            norm=_norm(c, fmt),
        )
    if kind not in ("full_attention", "sliding_attention"):
        raise ConfigError(
            f"{where}: layer {index} is of type {kind}, which cannot be expressed in this format"
        )
    window = c.sliding_window if kind == "sliding_attention" else None
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    turns = fmt.rope == "all layers" or window is not None
    bias = fmt.bias(c)
    if bias not in fmt.biases:
        raise ConfigError(f"{where}: attention_bias: {fmt.label} with biases cannot be expressed")
    gate = fmt.gate_form(c)
    mixer = AttentionConfig(
        num_heads=fmt.num_heads(c, kind),
        num_kv_heads=c.num_key_value_heads,
        head_dim=head_dim,
        qk_norm=_norm(c, fmt) if fmt.qk_norm == "required" else None,
        rope=read_rope(c, kind, head_dim, fmt, where) if turns else None,
        window_tokens=window,
        bias=bias,
        dropout=c.attention_dropout or 0.0,
    )
    return LayerConfig(
        mixer=mixer,
        ffn=_ffn(c, fmt, index, where),
        gates=() if gate == "none" else (NATIVE_GATES[gate],),
        norm=_norm(c, fmt),
        norm_placement="sandwich" if fmt.sandwich else "pre",
    )


def _norm(c: Any, fmt: Format) -> NormConfig:
    return NormConfig(eps=c.rms_norm_eps, weight=fmt.norm)


def _delta(c: Any, where: str) -> GatedDeltaConfig:
    """Read a Gated DeltaNet mixer; raises ConfigError for settings that cannot be expressed."""
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


def _ffn(c: Any, fmt: Format, index: int, where: str) -> FFNConfig:
    """Read a dense network or a mixture; raises ConfigError for an unknown activation."""
    # LFM3 has no such key: its code says silu
    activation = getattr(c, "hidden_act", "silu")
    if activation not in ACTIVATIONS:
        raise ConfigError(f"{where}: hidden_act {activation!r} cannot be expressed")
    activation = ACTIVATIONS[activation]
    if not fmt.is_sparse(c, index):
        return SwiGLUConfig(ffn_dim=c.intermediate_size, activation=activation)
    if fmt.one_expert == "dense" and c.num_experts == 1:
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
