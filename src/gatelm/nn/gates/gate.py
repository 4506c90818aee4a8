"""The gate: one config along orthogonal axes, one small module that computes it.

    y' = op(y, act(logits)),   logits = sum over inputs of proj(input) + bias

Source: arXiv 2505.06708, eq. 5, and the variants around it; see docs/gates.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field, Tag
from torch import nn
from torch.nn import functional as F

from gatelm.config import Config, by_kind, choice
from gatelm.nn.cost import ParamCount
from gatelm.nn.gates.sites import SITES, Sources
from gatelm.nn.norm import NormConfig
from gatelm.nn.shapes import Float, Tensor

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "tanh01": lambda z: 0.5 * (torch.tanh(z) + 1.0),
    "relu": F.relu,
    "silu": F.silu,
    "softplus": F.softplus,
    "hard_sigmoid": lambda z: torch.clamp(z / 6.0 + 0.5, 0.0, 1.0),
    "nonsparse_sigmoid": lambda z: 0.5 + 0.5 * torch.sigmoid(z),
    "two_sigmoid": lambda z: 2.0 * torch.sigmoid(z),
    "identity": lambda z: z,
}
"""Gate activations by name. A new entry is at once a config value, a study value and tested."""

OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mul": torch.mul,
    "add": torch.add,
}

INPUT_DOCS = {
    "x": "the pre-normed input of q/k/v (of the feed-forward network at `ffn`), (B,T,D)",
    "resid": "the raw residual stream, (B,T,D)",
    "q": "each head's own query, after its projection, before norm and RoPE",
    "q_rot": "each head's own query as it meets the keys, after norm, RoPE and the gate there",
    "y": "the gated tensor itself, each head its own channels",
    "lse": "log-sum-exp of the scaled scores, with coefficient 1 (a learned sink, with const)",
    "const": "no input: a learned parameter",
}

SHARINGS = {
    "per_head": "each head has its own scores",
    "per_kv_group": "the heads of one key/value group share scores",
    "shared": "all heads share one projection's scores",
    "mean": "every head has a projection and the scores are averaged over heads; the paper's "
    "head-shared gate, with as many parameters as per_head",
}

if TYPE_CHECKING:
    SiteName = ActivationName = OperationName = InputName = SharingName = str
else:
    SiteName = choice(SITES, "site")
    ActivationName = choice(ACTIVATIONS, "activation")
    OperationName = choice(OPERATIONS, "operation")
    InputName = choice(INPUT_DOCS, "gate input")
    SharingName = choice(SHARINGS, "sharing")


class GateInit(Config):
    """How a gate starts. The weight's kind is an entry of `nn.init.WEIGHT_INITS`."""

    weight: Literal["zeros", "normal", "xavier", "kaiming"] = "normal"
    std: float = Field(default=0.02, ge=0)
    """Standard deviation of `normal`."""
    bias: float | None = None
    """None: no bias parameter. A value: a learned bias that starts there."""


class TopK(Config):
    """Keep the k largest scores of each token, set the others to 0."""

    k: int = Field(ge=1)
    over: Literal["heads", "channels"] = "heads"


class GateConfig(Config):
    """One gate, along the axes of the module's formula."""

    kind: Literal["gate"] = "gate"
    site: SiteName = "sdpa"
    granularity: Literal["element", "head"] = "element"
    """element: a score per channel. head: a score per head (per token at `out` and `ffn`)."""
    sharing: SharingName = "per_head"
    activation: ActivationName = "sigmoid"
    operation: OperationName = "mul"
    inputs: tuple[InputName, ...] = ("x",)
    input_dim: int | None = Field(default=None, ge=1)
    """Read the first n channels of `x` and `resid` only."""
    rank: int | None = Field(default=None, ge=1)
    """Project through this many dimensions."""
    top_k: TopK | None = None
    init: GateInit = GateInit()
    compute_dtype: Literal["float32", "input"] = "float32"
    """Where the activation and the operation are computed; the result has y's dtype."""

    @property
    def needs_lse(self) -> bool:
        """Whether the backend must return the log-sum-exp of the scores."""
        return "lse" in self.inputs

    def build(self, shape: SiteShape) -> Gate:
        """The gate for a site of this shape."""
        return Gate(self, shape)

    def param_count(self, shape: SiteShape) -> ParamCount:
        """Parameters at a site of this shape."""
        matrix = 0
        for groups, width, out in shape.projections(self).values():
            inner = width * out if self.rank is None else self.rank * (width + out)
            matrix += groups * inner
        bias = shape.logit_heads(self) * shape.logit_width(self) if shape.has_bias(self) else 0
        return ParamCount(matrix, bias)


class SiteNormConfig(Config):
    """A norm over each head's channels in place of a gate (arXiv 2505.06708, table 3)."""

    kind: Literal["norm"] = "norm"
    site: SiteName = "sdpa"
    norm: NormConfig = NormConfig()

    def build(self, shape: SiteShape) -> SiteNorm:
        """The norm for a site of this shape."""
        return SiteNorm(self, shape)

    def param_count(self, shape: SiteShape) -> ParamCount:
        """Parameters at a site of this shape."""
        return ParamCount(norm=self.norm.num_weights(shape.head_dim))


class SiteActivationConfig(Config):
    """An activation at a site in place of a gate, no parameters (arXiv 2505.06708, table 3)."""

    kind: Literal["activation"] = "activation"
    site: SiteName = "sdpa"
    activation: ActivationName = "silu"

    def build(self, shape: SiteShape) -> SiteActivation:
        """The activation, the same at every site."""
        return SiteActivation(self)

    def param_count(self, shape: SiteShape) -> ParamCount:
        """Parameters: none."""
        return ParamCount()


ModifierConfig = Annotated[
    Annotated[GateConfig, Tag("gate")]
    | Annotated[SiteNormConfig, Tag("norm")]
    | Annotated[SiteActivationConfig, Tag("activation")],
    by_kind("gate"),
]
"""What may sit at a site. An entry is a config with `build` and `param_count`."""


@dataclass(frozen=True)
class SiteShape:
    """What a gate must know of its site: (..., num_heads, head_dim), and where it stands.

    `num_heads` is 1 at `out` and `ffn`, whose tensors have no heads.
    """

    num_heads: int
    head_dim: int
    hidden_dim: int
    num_groups: int
    num_query_heads: int
    query_dim: int

    def logit_heads(self, cfg: GateConfig) -> int:
        """Heads that have scores of their own."""
        return {"per_kv_group": min(self.num_groups, self.num_heads), "shared": 1}.get(
            cfg.sharing, self.num_heads
        )

    def logit_width(self, cfg: GateConfig) -> int:
        """Scores of one scored head: one for each channel, or a single one."""
        return self.head_dim if cfg.granularity == "element" else 1

    def projections(self, cfg: GateConfig) -> dict[str, tuple[int, int, int]]:
        """(groups, channels in, scores out) of each input with a projection; lse, const have none.

        There is one group where all scores are read from one vector, else one per scored head.
        """
        heads = self.logit_heads(cfg)
        vector = cfg.input_dim or self.hidden_dim
        per_head = {
            "q": self.num_query_heads * self.query_dim // heads,
            "q_rot": self.num_query_heads * self.query_dim // heads,
            "y": self.num_heads * self.head_dim // heads,
        }
        width = self.logit_width(cfg)
        return {
            name: (heads, per_head[name], width) if name in per_head else (1, vector, heads * width)
            for name in cfg.inputs
            if name not in ("lse", "const")
        }

    def has_bias(self, cfg: GateConfig) -> bool:
        """Whether the gate has a bias, which is all of a gate without input."""
        return "const" in cfg.inputs or cfg.init.bias is not None


class GateProjection(nn.Module):
    """`groups` linear maps side by side: (..., groups * in) -> (..., groups * out)."""

    def __init__(self, groups: int, in_dim: int, out_dim: int, rank: int | None):
        super().__init__()
        self.groups, self.in_dim, self.out_dim, self.rank = groups, in_dim, out_dim, rank
        if rank is None:
            self.weight = nn.Parameter(torch.empty(groups * out_dim, in_dim))
        else:
            self.down = nn.Parameter(torch.empty(groups * rank, in_dim))
            self.up = nn.Parameter(torch.empty(groups * out_dim, rank))

    def _map(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.groups == 1:
            return F.linear(x, weight)
        weight = weight.view(self.groups, -1, weight.shape[-1])
        x = x.unflatten(-1, (self.groups, weight.shape[-1]))
        return torch.einsum("...gi,goi->...go", x, weight).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (..., groups * out) of x (..., groups * in)."""
        if self.rank is None:
            return self._map(x, self.weight)
        return self._map(self._map(x, self.down), self.up)


class Gate(nn.Module):
    """Computes one gate; called by `nn.gates.sites.Sites`."""

    def __init__(self, cfg: GateConfig, shape: SiteShape):
        super().__init__()
        self.cfg, self.shape = cfg, shape
        self.proj = nn.ModuleDict(
            {n: GateProjection(*sizes, cfg.rank) for n, sizes in shape.projections(cfg).items()}
        )
        heads, width = shape.logit_heads(cfg), shape.logit_width(cfg)
        self.bias = nn.Parameter(torch.empty(heads, width)) if shape.has_bias(cfg) else None

    def logits(self, y: Tensor, sources: Sources) -> Float[Tensor, "B T L W"]:
        """Scores before the activation: L scored heads, W = head width or 1."""
        cfg, heads = self.cfg, self.shape.logit_heads(self.cfg)
        total: Tensor | None = None
        for name in cfg.inputs:
            if name == "const":
                continue
            if name == "lse":
                assert sources.lse is not None
                part = sources.lse[..., None]
            else:
                source = y if name == "y" else getattr(sources, name)
                if name in ("x", "resid"):
                    source = source[..., : cfg.input_dim]
                else:
                    source = source.flatten(2)
                part = self.proj[name](source).unflatten(-1, (heads, -1))
            total = part if total is None else total + part
        if self.bias is None:
            assert total is not None
            return total
        if total is None:
            return self.bias.expand(*y.shape[:2], *self.bias.shape)
        return total + self.bias

    def scores(self, y: Tensor, sources: Sources) -> Float[Tensor, "B T L W"]:
        """Activated scores, broadcastable to y's heads and channels."""
        cfg = self.cfg
        logits = self.logits(y, sources)
        if cfg.compute_dtype == "float32" and logits.dtype != torch.float64:
            logits = logits.float()
        scores = ACTIVATIONS[cfg.activation](logits)
        if cfg.sharing == "mean":
            scores = scores.mean(dim=-2, keepdim=True)
        elif 1 < scores.shape[-2] < self.shape.num_heads:
            repeats = self.shape.num_heads // scores.shape[-2]
            scores = scores.repeat_interleave(repeats, dim=-2)
        if cfg.top_k is not None:
            scores = keep_top_k(scores, cfg.top_k)
        return scores

    def forward(self, y: Tensor, sources: Sources, tap: nn.Module) -> Tensor:
        """The gated y, in its own shape and dtype; the scores pass `tap`."""
        merged = y.dim() == 3
        heads = y.unsqueeze(-2) if merged else y
        scores = tap(self.scores(heads, sources))
        if self.cfg.compute_dtype == "input":
            scores = scores.to(y.dtype)
        gated = OPERATIONS[self.cfg.operation](heads, scores).to(y.dtype)
        return gated.squeeze(-2) if merged else gated


class SiteNorm(nn.Module):
    """A norm over each head's channels, at a site."""

    def __init__(self, cfg: SiteNormConfig, shape: SiteShape):
        super().__init__()
        self.norm = cfg.norm.build(shape.head_dim)

    def forward(self, y: Tensor, sources: Sources, tap: nn.Module) -> Tensor:
        """The normed y."""
        return self.norm(y)


class SiteActivation(nn.Module):
    """An activation, at a site."""

    def __init__(self, cfg: SiteActivationConfig):
        super().__init__()
        self.cfg = cfg

    def forward(self, y: Tensor, sources: Sources, tap: nn.Module) -> Tensor:
        """The activated y."""
        return ACTIVATIONS[self.cfg.activation](y)


def keep_top_k(scores: Float[Tensor, "B T L W"], top_k: TopK) -> Float[Tensor, "B T L W"]:
    """Scores outside the k largest over heads, or over each head's channels, set to 0."""
    dim = -2 if top_k.over == "heads" else -1
    kept = scores.topk(top_k.k, dim=dim).indices
    mask = torch.zeros_like(scores).scatter_(dim, kept, 1.0)
    return scores * mask
