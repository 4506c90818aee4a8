"""Mixture of experts: a router sends each token to the few experts that it scores highest."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import nn
from torch.nn import functional as F

from gatelm.config import Config
from gatelm.nn.attention.masks import PADDING
from gatelm.nn.cost import ParamCount
from gatelm.nn.ffn.mlp import FFN_ACTIVATIONS, FFNActivation, SwiGLUConfig
from gatelm.nn.ffn.routing import LayerRouting
from gatelm.nn.forward_state import Context
from gatelm.nn.shapes import Bool, Float, Int, Tensor


class SharedExpertConfig(Config):
    """An expert that every token passes beside those it is sent to."""

    ffn_dim: int = Field(ge=1)
    gate: Literal["sigmoid", "none"] = "sigmoid"
    """sigmoid: one learned score per token scales it (Qwen3-Next)."""


class MoEConfig(Config):
    """Mixture of experts: sum over the top k of weight_i expert_i(x), each a SwiGLU network.

    The weights are softmax(W_router x), computed over all experts in fp32. No token is dropped:
    an expert takes all that it is sent.
    """

    kind: Literal["moe"] = "moe"
    num_experts: int = Field(ge=1)
    top_k: int = Field(ge=1)
    """Experts a token is sent to."""
    ffn_dim: int = Field(ge=1)
    """Width of one expert."""
    activation: FFNActivation = "silu"
    weights: Literal["normalised", "softmax"] = "normalised"
    """normalised: the chosen experts' weights are divided by their sum; softmax: as they are."""
    shared: SharedExpertConfig | None = None

    @model_validator(mode="after")
    def _check(self) -> MoEConfig:
        if self.top_k > self.num_experts:
            raise ValueError(
                f"top_k {self.top_k} is more than num_experts {self.num_experts}; lower it"
            )
        return self

    def build(self, hidden_dim: int, layer_index: int) -> MoE:
        """Build the module; it reports its routing under the layer's index."""
        return MoE(self, hidden_dim, layer_index)

    def output_weights(self) -> tuple[str, ...]:
        """Return the weights in which a factor on the network's output can be absorbed."""
        shared = () if self.shared is None else ("shared.down_proj.weight",)
        return ("experts.down_proj", *shared)

    def param_count(self, hidden_dim: int) -> ParamCount:
        """Count the parameters; the experts to which a token is not sent are idle."""
        expert = 3 * hidden_dim * self.ffn_dim
        shared = 0
        if self.shared is not None:
            shared = 3 * hidden_dim * self.shared.ffn_dim
            shared += hidden_dim if self.shared.gate == "sigmoid" else 0
        return ParamCount(
            matrix=self.num_experts * (hidden_dim + expert) + shared,
            idle=(self.num_experts - self.top_k) * expert,
        )


class Experts(nn.Module):
    """The weights of all experts, stacked: gate_proj and up_proj (E, F, D), down_proj (E, D, F)."""

    def __init__(self, cfg: MoEConfig, hidden_dim: int):
        super().__init__()
        self.act = FFN_ACTIVATIONS[cfg.activation]
        inward = (cfg.num_experts, cfg.ffn_dim, hidden_dim)
        self.gate_proj = nn.Parameter(torch.empty(inward))
        self.up_proj = nn.Parameter(torch.empty(inward))
        self.down_proj = nn.Parameter(torch.empty(cfg.num_experts, hidden_dim, cfg.ffn_dim))

    def forward(self, x: Float[Tensor, "R D"], counts: Int[Tensor, "E"]) -> Float[Tensor, "R D"]:
        """Apply the experts to rows sorted by expert; the first counts[0] rows are expert 0's."""
        inner = self.act(grouped(x, self.gate_proj, counts)) * grouped(x, self.up_proj, counts)
        return grouped(inner, self.down_proj, counts)


class MoE(nn.Module):
    """The router, the experts and the shared expert of one layer."""

    def __init__(self, cfg: MoEConfig, hidden_dim: int, layer_index: int):
        super().__init__()
        self.cfg, self.layer_index = cfg, layer_index
        self.router = nn.Linear(hidden_dim, cfg.num_experts, bias=False)
        self.experts = Experts(cfg, hidden_dim)
        self.shared = self.shared_gate = None
        if cfg.shared is not None:
            dense = SwiGLUConfig(ffn_dim=cfg.shared.ffn_dim, activation=cfg.activation)
            self.shared = dense.build(hidden_dim, layer_index)
            if cfg.shared.gate == "sigmoid":
                self.shared_gate = nn.Linear(hidden_dim, 1, bias=False)

    def forward(self, x: Float[Tensor, "B T D"], context: Context) -> Float[Tensor, "B T D"]:
        """Compute the network's output for x, and fill `context.routing` if it is given."""
        tokens = x.flatten(0, 1)
        logits = self._logits(tokens)
        probs = logits.softmax(dim=-1)
        weights, chosen = probs.topk(self.cfg.top_k, dim=-1)
        if self.cfg.weights == "normalised":
            weights = weights / weights.sum(dim=-1, keepdim=True)
        if context.routing is not None:
            documents = context.documents
            counted = None if documents is None else (documents != PADDING).flatten()
            summed = self._summed(logits, probs, chosen, counted)
            context.routing.layers[self.layer_index] = summed
        y = self._dispatch(tokens, weights, chosen).view_as(x)
        if self.shared is not None:
            shared = self.shared(x, context)
            y = y + (shared if self.shared_gate is None else self.shared_gate(x).sigmoid() * shared)
        return y

    def _logits(self, x: Float[Tensor, "M D"]) -> Float[Tensor, "M E"]:
        """Compute router scores without autocast, as rounding would change the chosen experts."""
        with torch.autocast(x.device.type, enabled=False):
            logits = self.router(x.to(self.router.weight.dtype))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def _dispatch(
        self, x: Float[Tensor, "M D"], weights: Float[Tensor, "M k"], chosen: Int[Tensor, "M k"]
    ) -> Float[Tensor, "M D"]:
        """Send each token through its experts: sort by expert, restore the order, then sum."""
        top_k, dtype = self.cfg.top_k, x.dtype
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
        order = chosen.flatten().argsort(stable=True)
        counts = _histogram(chosen, torch.ones_like(chosen[:, 0]), self.cfg.num_experts)
        y = self.experts(x.to(dtype)[order // top_k], counts)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        y = y[back].unflatten(0, (-1, top_k))
        return (y * weights[..., None]).sum(dim=1).to(dtype)

    def _summed(
        self,
        logits: Float[Tensor, "M E"],
        probs: Float[Tensor, "M E"],
        chosen: Int[Tensor, "M k"],
        counted: Bool[Tensor, "M"] | None,
    ) -> LayerRouting:
        squares = logits.logsumexp(dim=-1).square()
        ones = torch.ones_like(squares) if counted is None else counted.to(squares.dtype)
        with torch.no_grad():
            counts = _histogram(chosen, ones, self.cfg.num_experts)
        summed = (probs * ones[:, None]).sum(dim=0)
        return LayerRouting(counts, summed, (squares * ones).sum(), self.cfg.top_k)


def grouped(
    x: Float[Tensor, "R I"], weight: Float[Tensor, "E O I"], counts: Int[Tensor, "E"]
) -> Float[Tensor, "R O"]:
    """Multiply rows, sorted by expert, by their expert's matrix; counts[0] rows are expert 0's.

    One kernel where torch has one, else a product for each expert.
    """
    weight = weight.to(x.dtype)
    if has_kernel(x, weight):
        ends = counts.cumsum(0).to(torch.int32)
        return F.grouped_mm(x, weight.transpose(1, 2), offs=ends)
    rows = x.split(counts.tolist())
    return torch.cat([F.linear(r, w) for r, w in zip(rows, weight, strict=True)])


def has_kernel(x: Tensor, weight: Tensor) -> bool:
    """Whether `F.grouped_mm` takes these: its rows must be multiples of 16 bytes."""
    if any(size * x.element_size() % 16 for size in weight.shape[1:]):
        return False
    if x.device.type == "cuda":
        return x.dtype is torch.bfloat16 and torch.cuda.get_device_capability(x.device) >= (8, 0)
    if torch.compiler.is_compiling():
        return x.dtype is torch.bfloat16
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16, torch.float16)


def _histogram(chosen: Int[Tensor, "M k"], weights: Tensor, num_experts: int) -> Tensor:
    """Sum `weights` (M,) by expert over the tokens sent to it."""
    each = weights[:, None].expand_as(chosen).flatten()
    return each.new_zeros(num_experts).scatter_add_(0, chosen.flatten(), each)
