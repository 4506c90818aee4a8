"""The model types with a gate on the attention output, and how their weights pack it.

Recognised by `model_type`, never by shape: two layouts of a packed q_proj have the same shape, and
the wrong one reads numbers that look right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from gatelm.config import ConfigError
from gatelm.nn.shapes import Bool, Float, Tensor

SITE = "sdpa"
"""Site of the gate in all known families: the heads' outputs, before W_o."""


@dataclass(frozen=True)
class GateLayout:
    """Layout of a family's gate: where its logits are made, and how they are used.

    module: of the projection, below the attention module. packing: per_query_head: rows are
    [query | gate] of each query head (Qwen3-Next); per_kv_group: [queries | gates] of each group
    of heads that share a key (arXiv 2505.06708); own: a projection of its own. granularity:
    element: a score per channel; head: one per head. bias: name of an added parameter per head.
    precision: of the activation, "float32" or that of the model ("input").
    """

    module: str
    packing: Literal["own", "per_query_head", "per_kv_group"] = "own"
    granularity: Literal["element", "head"] = "element"
    activation: Literal["sigmoid", "softplus"] = "sigmoid"
    bias: str | None = None
    precision: Literal["input", "float32"] = "input"


def _by_config(key: str) -> Callable[[Any], GateLayout]:
    """g_proj of laguna and step3.5: config.gating is True, "per-head" or "per-element"."""

    def layout(config: Any) -> GateLayout:
        per_head = config.gating is True or config.gating == "per-head"
        softplus = key == "laguna"
        return GateLayout(
            "g_proj",
            granularity="head" if per_head else "element",
            activation="softplus" if softplus else "sigmoid",
            precision="float32" if softplus else "input",
        )

    return layout


def _lfm3(config: Any) -> GateLayout | None:
    return GateLayout("g_proj", granularity="head") if config.use_attention_gate else None


_PACKED = GateLayout("q_proj", packing="per_query_head")
_GATE_PROJ = GateLayout("gate_proj")

GATED: Mapping[str, GateLayout | Callable[[Any], GateLayout | None]] = {
    "qwen3_next": _PACKED,
    "qwen3_5_text": _PACKED,
    "qwen3_5_moe_text": _PACKED,
    "qwen4_exp_text": _PACKED,
    "afmoe": _GATE_PROJ,
    "hrm_text": _GATE_PROJ,
    "muse_glimmer_text": _GATE_PROJ,
    "muse_spark_text": _GATE_PROJ,
    "hy_v4": _GATE_PROJ,
    "beam": GateLayout("gate_proj", bias="gate_bias"),
    "inkling2_text": GateLayout("o_proj.gate_proj", precision="float32"),
    "laguna": _by_config("laguna"),
    "step3p5": _by_config("step3p5"),
    "lfm3": _lfm3,
    "bailing_hybrid": GateLayout("g_proj", granularity="head", precision="float32"),
    "dots3_note_text": GateLayout("g_proj", granularity="head"),
}
"""Layouts of gates by the model_type of the text config."""

OWN_GATES_UNREAD = {
    "axk2": "its gate reads the low-rank query latents",
    "dory": "its gate has a learned scale and a norm after it",
    "minimax": "its gate is on the linear-attention layers",
}
"""Families with gates that are not read, and the form of these gates."""

_UNGATED = """
apertus arcee biogpt bitnet bloom codegen cohere cohere2 ctrl dbrx deepseek_v2 deepseek_v3
ernie4_5 ernie4_5_moe exaone4 falcon gemma gemma2 gemma3_text glm glm4 glm4_moe gpt2 gpt_bigcode
gpt_neo gpt_neox gpt_oss gptj granite granitemoe helium llama llama4_text ministral mistral
mixtral mpt nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3
qwen3_moe seed_oss smollm3 stablelm starcoder2 xglm
"""
UNGATED = frozenset(_UNGATED.split())
"""Families known to have no gate on the attention output."""

LINEAR_GATES = frozenset(
    ["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp_text", "bailing_hybrid"]
)
"""Families whose linear-attention layers have output gates of their own, which are not read."""


def gate_layout(config: Any) -> GateLayout | None:
    """Return the layout of a model type's gate; None for a type without one, or an unknown type."""
    if layout := paper_layout(config):
        return layout
    entry = GATED.get(config.model_type)
    return entry if entry is None or isinstance(entry, GateLayout) else entry(config)


def paper_layout(config: Any) -> GateLayout | None:
    """Return the layout of the release of arXiv 2505.06708; headwise goes first, as in its code."""
    if getattr(config, "headwise_attn_output_gate", False):
        return GateLayout("q_proj", packing="per_kv_group", granularity="head")
    if getattr(config, "elementwise_attn_output_gate", False):
        return GateLayout("q_proj", packing="per_kv_group", granularity="element")
    return None


def gate_note(config: Any) -> str | None:
    """Say in a sentence what is not known about the gates of a model type."""
    kind = config.model_type
    if kind in OWN_GATES_UNREAD:
        return f"{kind} has gates that are not shown: {OWN_GATES_UNREAD[kind]}"
    if kind in LINEAR_GATES:
        return "the output gates of the linear-attention layers are not shown"
    if kind in UNGATED or gate_layout(config) is not None or kind in GATED:
        return None
    return f"whether {kind} has gates is not known here: if it has any, they are not shown"


@dataclass(frozen=True)
class HeadShape:
    """Numbers of query and key/value heads, and widths of a query head and of an output head."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int


class GateReader:
    """Reader of one attention module's gate: from its projection's output to scores, and back."""

    def __init__(self, layout: GateLayout, attention: nn.Module, shape: HeadShape, where: str):
        self.layout, self.shape = layout, shape
        try:
            self.projection = attention.get_submodule(layout.module)
        except AttributeError:
            raise ConfigError(
                f"{where}: this model type has its gate in {layout.module}, which is missing"
            ) from None
        weight = self.projection.weight
        assert isinstance(weight, Tensor)
        width = 1 if layout.granularity == "head" else shape.value_dim
        rows = shape.num_heads * (width + (0 if layout.packing == "own" else shape.head_dim))
        if weight.shape[0] != rows:
            raise ConfigError(
                f"{where}: {layout.module} has {weight.shape[0]} rows, but a gate per "
                f"{layout.granularity} in this layout makes {rows}"
            )
        self._is_gate = _gate_rows(layout, shape, width, weight.device)
        self._width = width
        self._bias = getattr(attention, layout.bias) if layout.bias else None

    def scores(self, projected: Float[Tensor, "B T O"]) -> Float[Tensor, "B T N W"]:
        """Compute activated scores from the projection's output."""
        logits = projected[..., self._is_gate] if self.layout.packing != "own" else projected
        logits = logits.unflatten(-1, (self.shape.num_heads, self._width))
        if self._bias is not None:
            logits = logits + self._bias[:, None]
        wide = logits.float() if self.layout.precision == "float32" else logits
        act = torch.sigmoid if self.layout.activation == "sigmoid" else F.softplus
        return act(wide).to(logits.dtype)

    def replaced(
        self, projected: Float[Tensor, "B T O"], scores: Float[Tensor, "B T N W"]
    ) -> Float[Tensor, "B T O"]:
        """Return the projection's output from which the family's own code computes `scores`.

        Raises:
            ValueError: for scores that the activation cannot give.
        """
        wide = scores.float()
        top = 1.0 if self.layout.activation == "sigmoid" else float("inf")
        if bool((wide < 0).any()) or bool((wide > top).any()) or bool(wide.isnan().any()):
            raise ValueError(
                f"a {self.layout.activation} gate gives scores from 0 to {top:g}, so a change to "
                f"{float(wide.min()):g} ... {float(wide.max()):g} is not possible"
            )
        if self.layout.activation == "sigmoid":
            logits = torch.logit(wide)
        else:
            logits = wide + torch.log(-torch.expm1(-wide))
        if self._bias is not None:
            logits = logits - self._bias.float()[:, None]
        flat = logits.to(projected.dtype).flatten(-2)
        if self.layout.packing == "own":
            return flat
        changed = projected.clone()
        changed[..., self._is_gate] = flat
        return changed

    def weight_norms(self) -> Float[Tensor, "N"]:
        """Frobenius norm of each head's rows."""
        weight = self.projection.weight
        assert isinstance(weight, Tensor)
        rows = weight[self._is_gate] if self.layout.packing != "own" else weight
        return rows.detach().double().cpu().reshape(self.shape.num_heads, -1).norm(dim=1)


def _gate_rows(
    layout: GateLayout, shape: HeadShape, width: int, device: torch.device
) -> Bool[Tensor, "O"]:
    """Return the indices of the projection's gate rows, head by head in order."""
    if layout.packing == "own":
        return torch.ones(shape.num_heads * width, dtype=torch.bool, device=device)
    units = shape.num_heads if layout.packing == "per_query_head" else shape.num_kv_heads
    heads = shape.num_heads // units
    unit = torch.zeros(heads * (shape.head_dim + width), dtype=torch.bool, device=device)
    unit[heads * shape.head_dim :] = True
    return unit.repeat(units)
