"""What each format can express, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gatelm.hf.convert.formats.hybrid import DeltaPacking
from gatelm.hf.convert.formats.tensors import (
    AFMOE_NAMES,
    G_PROJ_NAMES,
    LFM3_NAMES,
    LLAMA_NAMES,
    Names,
)

GateForm = Literal["none", "head", "element"]


@dataclass(frozen=True)
class Format:
    """One model format.

    name: of `--to`, and of most the model_type. norm: how its RMSNorm weights are stored: plain
    (y w) or zero_centred (y (1 + w)). gates: forms of the sigmoid gate after SDPA that it has.
    layout: how q_proj packs the gate; None: the gate is a matrix of its own. biases: of the
    attention projections. windows: none, the same in all layers, or by layer. rope: which layers
    turn. delta: how the projections of Gated DeltaNet layers are packed; None: it has none.
    experts: which layers may be mixtures of experts. shared_expert: beside them, scaled by a
    sigmoid. heads: of the embedding and output matrices.
    """

    name: str
    label: str
    names: Names
    model_type: str
    architecture: str
    norm: Literal["plain", "zero_centred"] = "plain"
    qk_norm: Literal["required", "never"] = "required"
    gates: tuple[GateForm, ...] = ("none",)
    layout: str | None = None
    biases: tuple[str, ...] = ("none",)
    windows: Literal["never", "all layers", "by layer"] = "never"
    rope: Literal["all layers", "windowed layers"] = "all layers"
    partial_rotary: bool = False
    sandwich: bool = False
    delta: DeltaPacking | None = None
    experts: Literal["never", "any layer", "all layers"] = "never"
    shared_expert: Literal["required", "never"] = "never"
    heads: tuple[str, ...] = ("tied", "untied")
    written: bool = True


_LLAMA = Format(
    "llama",
    "Llama",
    LLAMA_NAMES,
    "llama",
    "LlamaForCausalLM",
    qk_norm="never",
    biases=("none", "all"),
)
_QWEN3_5 = Format(
    "qwen3_5_text",
    "Qwen3.5 text",
    LLAMA_NAMES,
    "qwen3_5_text",
    "Qwen3_5ForCausalLM",
    norm="zero_centred",
    gates=("element",),
    layout="per_query_head",
    partial_rotary=True,
    delta="apart",
)

FORMATS: dict[str, Format] = {
    entry.name: entry
    for entry in (
        _QWEN3_5,
        Format(
            "qwen3_next",
            "Qwen3-Next",
            LLAMA_NAMES,
            "qwen3_next",
            "Qwen3NextForCausalLM",
            norm="zero_centred",
            gates=("element",),
            layout="per_query_head",
            partial_rotary=True,
            delta="grouped",
            experts="any layer",
            shared_expert="required",
            heads=("untied",),
        ),
        Format(
            "qwen3_5_moe_text",
            "Qwen3.5 text with experts",
            LLAMA_NAMES,
            "qwen3_5_moe_text",
            "Qwen3_5MoeForCausalLM",
            norm="zero_centred",
            gates=("element",),
            layout="per_query_head",
            partial_rotary=True,
            delta="apart",
            experts="all layers",
            shared_expert="required",
        ),
        Format(
            "paper",
            "the release of arXiv 2505.06708",
            LLAMA_NAMES,
            "qwen3",
            "Qwen3ForCausalLM",
            gates=("none", "head", "element"),
            layout="per_kv_group",
        ),
        _LLAMA,
        Format(
            "mistral",
            "Mistral",
            LLAMA_NAMES,
            "mistral",
            "MistralForCausalLM",
            qk_norm="never",
            windows="all layers",
        ),
        Format(
            "qwen2",
            "Qwen2",
            LLAMA_NAMES,
            "qwen2",
            "Qwen2ForCausalLM",
            qk_norm="never",
            biases=("qkv",),
            windows="by layer",
        ),
        Format(
            "qwen3",
            "Qwen3",
            LLAMA_NAMES,
            "qwen3",
            "Qwen3ForCausalLM",
            biases=("none", "all"),
            windows="by layer",
        ),
        Format(
            "qwen3_moe",
            "Qwen3 with experts",
            LLAMA_NAMES,
            "qwen3_moe",
            "Qwen3MoeForCausalLM",
            biases=("none", "all"),
            windows="all layers",
            experts="any layer",
        ),
        Format(
            "afmoe",
            "AFMoE (dense layers)",
            AFMOE_NAMES,
            "afmoe",
            "AfmoeForCausalLM",
            gates=("element",),
            biases=("none", "all"),
            windows="by layer",
            rope="windowed layers",
            sandwich=True,
        ),
        Format(
            "lfm3",
            "LFM3 (attention layers)",
            LFM3_NAMES,
            "lfm3",
            "Lfm3ForCausalLM",
            gates=("none", "head"),
            biases=("none", "all"),
            windows="by layer",
            sandwich=True,
        ),
        Format(
            "step3p7",
            "Step 3.7 (dense layers of the text part)",
            G_PROJ_NAMES,
            "step3p7",
            "Step3p7ForConditionalGeneration",
            norm="zero_centred",
            gates=("head",),
            biases=("none", "all"),
            windows="by layer",
            partial_rotary=True,
            heads=("tied", "untied"),
            written=False,
        ),
    )
}
"""By the name `--to` takes; `written` is false where only reading is possible."""
