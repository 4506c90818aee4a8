"""config.json of others as a `ModelConfig`. A key that is not known here is an error."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from transformers import AutoConfig, PreTrainedConfig
from transformers.utils import logging

from gatelm.config import ConfigError
from gatelm.hf.convert.formats.layers import DELTA_GATE, NATIVE_GATES, compress
from gatelm.hf.convert.formats.qwen import check_windows, read_delta, read_ffn
from gatelm.hf.convert.formats.rope import ORIGINAL, one_spelling, read_rope
from gatelm.hf.convert.formats.rules import FORMATS, Format
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.block import LayerConfig
from gatelm.nn.model import InitConfig, ModelConfig
from gatelm.nn.norm import NormConfig

PAPER_KEYS = ("headwise_attn_output_gate", "elementwise_attn_output_gate")

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
_LINEAR = """
linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim linear_num_key_heads
linear_num_value_heads full_attention_interval layer_types attention_bias partial_rotary_factor
mamba_ssm_dtype output_gate_type attn_output_gate mtp_num_hidden_layers
mtp_use_dedicated_embeddings
"""
_MOE = """
decoder_sparse_step mlp_only_layers moe_intermediate_size norm_topk_prob num_experts
num_local_experts num_experts_per_tok
"""
_SHARED = " shared_expert_intermediate_size"
_WINDOWS = "sliding_window use_sliding_window max_window_layers layer_types"
_KEYS = {
    "llama": "attention_bias mlp_bias",
    "mistral": "sliding_window",
    "qwen2": _WINDOWS + " use_mrope",
    "qwen3": _WINDOWS + " attention_bias",
    "paper": _WINDOWS + " attention_bias qkv_bias use_qk_norm " + " ".join(PAPER_KEYS),
    "qwen3_moe": _WINDOWS + " attention_bias" + _MOE,
    "qwen3_next": _LINEAR + _MOE + _SHARED + " use_sliding_window",
    "qwen3_5_text": _LINEAR,
    "qwen3_5_moe_text": _LINEAR + _MOE + _SHARED,
    "afmoe": "attention_bias global_attn_every_n_layers layer_types mup_enabled sliding_window "
    "num_dense_layers num_experts num_experts_per_tok num_shared_experts moe_intermediate_size "
    "route_scale n_group num_expert_groups num_limited_groups topk_group score_func route_norm "
    "load_balance_coeff use_grouped_mm",
    "lfm3": "attention_bias conv_bias conv_L_cache layer_types norm_eps sliding_window "
    "use_attention_gate use_sandwich_norm",
    "step3p7": "attention_bias mlp_bias gating layer_types mlp_layer_types moe_intermediate_size "
    "moe_router_scaling_factor mtp_layer_types mtp_mlp_layer_types n_routed_experts "
    "num_experts_per_tok num_nextn_predict_layers num_sliding_attention_heads per_layer_config "
    "query_pre_attn_scalar share_expert_dim sliding_window swiglu_limits swiglu_limits_shared "
    "use_bidirectional_attention",
}
"""Keys that a reader uses, or that cannot change a model of the kind it accepts."""

_ONLY = {
    "rope_interleaved": (False, None),
    "attn_output_gate": (True,),
    "is_encoder_decoder": (False,),
    "use_mrope": (False,),
}
"""Known keys that are understood at these values alone. transformers ignores some of them; other
engines do not."""


def recognise(tree: Mapping[str, Any], where: str) -> Format:
    """The format of a config.json, by its model_type and, for the paper's release, its keys.

    Raises:
        ConfigError: when it is none of `FORMATS`.
    """
    kind = tree.get("model_type")
    if kind == "qwen3" and any(key in tree for key in PAPER_KEYS):
        return FORMATS["paper"]
    if kind in FORMATS and kind != "paper":
        return FORMATS[kind]
    known = ", ".join(f.model_type for f in FORMATS.values() if f.name != "paper")
    more = ""
    if kind in ("qwen3_5", "qwen3_5_moe"):
        more = f"; of Qwen3.5 only the text model ({kind}_text) is read"
    raise ConfigError(f"{where}: model_type {kind!r} cannot be converted; known: {known}{more}")


def read_config(tree: Mapping[str, Any], fmt: Format, where: str) -> ModelConfig:
    """The model that a config.json of a known format describes.

    Raises:
        ConfigError: for a key that is not known, and for what this package cannot express.
    """
    text = dict(tree.get("text_config") or {}) if fmt.name == "step3p7" else dict(tree)
    known = {*_SIZES.split(), *_INERT.split(), *_KEYS[fmt.name].split(), ORIGINAL}
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
    _READERS.get(fmt.name, _nothing)(filled, where)
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


def _filled(text: dict[str, Any], fmt: Format, where: str) -> Any:
    """The config with transformers' own defaults, which matter: a missing partial_rotary_factor
    means a quarter for Qwen3.5."""
    kind = "step3p5" if fmt.name == "step3p7" else fmt.model_type
    text.pop("model_type", None)
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        if kind == "step3p5":
            from transformers import Step3p7TextConfig

            config = Step3p7TextConfig.from_dict(text)
            config.allow_global_per_layer_attribute_access = True
            return config
        known: type[PreTrainedConfig] = type(AutoConfig.for_model(kind))
        return known.from_dict({k: v for k, v in text.items() if k != "auto_map"})
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(f"{where}: {' '.join(lines):.300}") from None
    finally:
        logging.set_verbosity(level)


def _layer(c: Any, fmt: Format, index: int, where: str) -> LayerConfig:
    kind = _layer_type(c, fmt, index)
    if kind == "linear_attention" and fmt.delta is not None:
        return LayerConfig(
            mixer=read_delta(c, where),
            ffn=read_ffn(c, fmt, index, where),
            gates=(DELTA_GATE,),
            norm=_norm(c, fmt),
        )
    if kind not in ("full_attention", "sliding_attention"):
        raise ConfigError(
            f"{where}: layer {index} is of type {kind}, which cannot be expressed in this format"
        )
    window = c.sliding_window if kind == "sliding_attention" else None
    heads = c.num_attention_heads if fmt.name != "step3p7" else _step_heads(c, kind)
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    turns = fmt.rope == "all layers" or window is not None
    bias = "all" if getattr(c, "attention_bias", False) else "none"
    if bias not in fmt.biases and fmt.name != "qwen2":
        raise ConfigError(f"{where}: attention_bias: {fmt.label} with biases cannot be expressed")
    gate = _gate_form(c, fmt)
    mixer = AttentionConfig(
        num_heads=heads,
        num_kv_heads=c.num_key_value_heads,
        head_dim=head_dim,
        qk_norm=_norm(c, fmt) if fmt.qk_norm == "required" else None,
        rope=read_rope(c, kind, head_dim, fmt, where) if turns else None,
        window_tokens=window,
        bias="qkv" if fmt.name == "qwen2" else bias,
        dropout=c.attention_dropout or 0.0,
    )
    return LayerConfig(
        mixer=mixer,
        ffn=read_ffn(c, fmt, index, where),
        gates=() if gate == "none" else (NATIVE_GATES[gate],),
        norm=_norm(c, fmt),
        norm_placement="sandwich" if fmt.sandwich else "pre",
    )


def _norm(c: Any, fmt: Format) -> NormConfig:
    return NormConfig(eps=c.rms_norm_eps, weight=fmt.norm)


def _layer_type(c: Any, fmt: Format, index: int) -> str:
    if fmt.name in ("mistral", "qwen3_moe"):
        return "full_attention" if c.sliding_window is None else "sliding_attention"
    types = getattr(c, "layer_types", None)
    return types[index] if types else "full_attention"


def _gate_form(c: Any, fmt: Format) -> str:
    if fmt.name == "paper":
        # the release's code asks for headwise first
        head, element = (getattr(c, key, False) for key in PAPER_KEYS)
        return "head" if head else "element" if element else "none"
    if fmt.name == "lfm3":
        return "head" if c.use_attention_gate else "none"
    return fmt.gates[0]


def _step_heads(c: Any, kind: str) -> int:
    sliding = getattr(c, "num_sliding_attention_heads", None)
    return sliding if kind == "sliding_attention" and sliding else c.num_attention_heads


def _nothing(c: Any, where: str) -> None:
    return


def _llama(c: Any, where: str) -> None:
    if c.mlp_bias:
        raise ConfigError(f"{where}: mlp_bias: a feed-forward network with biases has no form here")


def _paper(c: Any, where: str) -> None:
    if getattr(c, "use_qk_norm", True) is not True:
        raise ConfigError(f"{where}: use_qk_norm false: only models with QK-norm can be checked")
    if getattr(c, "qkv_bias", False) or c.attention_bias:
        raise ConfigError(f"{where}: qkv_bias: the release has no biases, and none are converted")


def _afmoe(c: Any, where: str) -> None:
    if c.num_dense_layers < c.num_hidden_layers:
        raise ConfigError(
            f"{where}: layers {c.num_dense_layers} to {c.num_hidden_layers - 1} are mixtures of "
            "experts, which cannot be expressed; only dense layers can"
        )
    if c.mup_enabled and c.tie_word_embeddings:
        raise ConfigError(
            f"{where}: mup_enabled scales the embedding but not the head, which cannot be tied then"
        )


def _lfm3(c: Any, where: str) -> None:
    if not c.use_sandwich_norm:
        raise ConfigError(f"{where}: use_sandwich_norm false is not read")


def _step3p7(c: Any, where: str) -> None:
    sparse = [i for i, kind in enumerate(c.mlp_layer_types) if kind != "dense"]
    if sparse:
        raise ConfigError(
            f"{where}: layers {sparse[0]} ... are mixtures of experts, which cannot be expressed; "
            "only dense layers can"
        )
    limits = c.swiglu_limits_shared or ()
    if any(limits) or c.mlp_bias or c.use_bidirectional_attention:
        raise ConfigError(
            f"{where}: swiglu_limits_shared, mlp_bias or use_bidirectional_attention is set, which "
            "cannot be expressed"
        )
    if c.query_pre_attn_scalar != c.head_dim:
        raise ConfigError(f"{where}: query_pre_attn_scalar other than head_dim is not read")
    if c.gating not in (True, "per-head"):
        raise ConfigError(f"{where}: gating {c.gating!r}: Step's code computes per-head gates only")


_READERS: Mapping[str, Callable[[Any, str], None]] = {
    "llama": _llama,
    "paper": _paper,
    "qwen3_next": check_windows,
    "afmoe": _afmoe,
    "lfm3": _lfm3,
    "step3p7": _step3p7,
}

_LEFT_OUT: Mapping[str, Iterable[str]] = {
    "qwen3_next": (r"^mtp\.",),
    "qwen3_5_text": (r"^mtp\.",),
    "qwen3_5_moe_text": (r"^mtp\.",),
    "step3p7": (r"^vision_model\.", r"^vit_large_projector\.", r"^model\.vision"),
}


def left_out(fmt: Format) -> tuple[str, ...]:
    """Patterns of tensors that are not part of the language model, or that are computed."""
    return (r"rotary_emb\.inv_freq$", *_LEFT_OUT.get(fmt.name, ()))
