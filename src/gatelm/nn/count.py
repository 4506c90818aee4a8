"""Parameters, FLOPs and cache bytes, from the config alone: no weight is allocated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from gatelm.nn.attention import AttentionConfig
from gatelm.nn.block import LayerConfig
from gatelm.nn.ffn import MLPConfig, SwiGLUConfig
from gatelm.nn.gate import GateConfig, ModifierConfig, SiteNormConfig, SiteShape
from gatelm.nn.model import ModelConfig
from gatelm.nn.norm import NormConfig


@dataclass(frozen=True)
class Count:
    """Parameters by what they belong to."""

    embedding: int
    head: int
    attention: int
    ffn: int
    gate: int
    norm: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    @property
    def non_embedding(self) -> int:
        return self.total - self.embedding

    @property
    def gate_share(self) -> float:
        """The gates' part of all parameters."""
        return self.gate / self.total

    def as_dict(self) -> dict[str, Any]:
        return {"total": self.total, **asdict(self), "non_embedding": self.non_embedding}


@dataclass(frozen=True)
class _Part:
    """A module's matrix entries (two FLOPs a token each) and its other parameters."""

    matrix: int = 0
    other: int = 0

    @property
    def parameters(self) -> int:
        return self.matrix + self.other


def count(cfg: ModelConfig) -> Count:
    """Parameters of the model `cfg` describes; equal to the built module's."""
    vocab, dim = _vocab(cfg), cfg.hidden_dim
    learned = cfg.position_embedding.max_tokens * dim if cfg.position_embedding else 0
    layers = cfg.layers()
    return Count(
        embedding=vocab * dim + learned,
        head=vocab * dim if cfg.head == "untied" else 0,
        attention=sum(_attention(layer.mixer, dim).parameters for layer in layers),
        ffn=sum(_ffn(layer.ffn, dim) for layer in layers),
        gate=sum(_gates(layer, dim).parameters for layer in layers),
        norm=_norm(cfg.final_norm, dim) + sum(_norms(layer, dim) for layer in layers),
    )


def flops_per_token(cfg: ModelConfig, seq_len: int, *, training: bool = True) -> int:
    """Matrix-product FLOPs per token at `seq_len`; training = 3 x forward.

    Attention counts the whole T x T square, as kernels' counters do: no discount for causality or
    windows. Norms, activations and the gate's own product are not counted.
    """
    dim = cfg.hidden_dim
    forward = 2 * _vocab(cfg) * dim
    for layer in cfg.layers():
        matrix = _attention(layer.mixer, dim).matrix + _ffn(layer.ffn, dim)
        forward += 2 * (matrix + _gates(layer, dim).matrix)
        forward += 4 * layer.mixer.num_heads * layer.mixer.width(dim) * seq_len
    return 3 * forward if training else forward


def kv_bytes_per_token(cfg: ModelConfig, bytes_per_value: int = 2) -> int:
    """Bytes the key/value cache grows by with each token, all layers; gates add none."""
    return sum(
        2 * layer.mixer.kv_heads * layer.mixer.width(cfg.hidden_dim) * bytes_per_value
        for layer in cfg.layers()
    )


def match_ffn_dim(cfg: ModelConfig, target_total: int, multiple: int = 8) -> int:
    """The `layer.ffn.ffn_dim`, a multiple of `multiple`, whose model comes nearest to the target.

    Raises:
        ValueError: when even the smallest FFN has more parameters.
    """

    def total(ffn_dim: int) -> int:
        layer = cfg.layer.replace(ffn=cfg.layer.ffn.replace(ffn_dim=ffn_dim))
        return count(cfg.replace(layer=layer)).total

    base = total(multiple)
    slope = total(2 * multiple) - base
    if slope <= 0:
        raise ValueError("model.layer.ffn.ffn_dim: no layer uses it, so it cannot match parameters")
    steps = 1 + round((target_total - base) / slope)
    if steps < 1:
        raise ValueError(
            f"no FFN width gives {target_total:,} parameters: with ffn_dim {multiple} the model "
            f"already has {base:,}"
        )
    return steps * multiple


def _vocab(cfg: ModelConfig) -> int:
    if cfg.vocab_size is None:
        raise ValueError("model.vocab_size: needed to count parameters (training data sets it)")
    return cfg.vocab_size


def _norm(cfg: NormConfig, dim: int) -> int:
    return 0 if cfg.weight == "none" else dim


def _norms(layer: LayerConfig, dim: int) -> int:
    per_layer = 4 if layer.norm_placement == "sandwich" else 2
    qk_norm = layer.mixer.qk_norm
    on_heads = 2 * _norm(qk_norm, layer.mixer.width(dim)) if qk_norm else 0
    at_sites = sum(
        _norm(m.norm, layer.site_shape(m.site, dim).head_dim)
        for m in layer.gates
        if isinstance(m, SiteNormConfig)
    )
    return per_layer * _norm(layer.norm, dim) + on_heads + at_sites


def _attention(cfg: AttentionConfig, dim: int) -> _Part:
    queries, keys = cfg.num_heads * cfg.width(dim), cfg.kv_heads * cfg.width(dim)
    bias = {"none": 0, "qkv": queries + 2 * keys, "all": queries + 2 * keys + dim}[cfg.bias]
    return _Part(matrix=dim * (2 * queries + 2 * keys), other=bias)


def _swiglu(cfg: SwiGLUConfig, dim: int) -> int:
    return 3 * dim * cfg.ffn_dim


def _mlp(cfg: MLPConfig, dim: int) -> int:
    return 2 * dim * cfg.ffn_dim


FFN_COUNTS: dict[str, Callable[..., int]] = {"swiglu": _swiglu, "mlp": _mlp}


def _ffn(cfg: SwiGLUConfig | MLPConfig, dim: int) -> int:
    return FFN_COUNTS[cfg.kind](cfg, dim)


def _gates(layer: LayerConfig, dim: int) -> _Part:
    parts = [_gate(m, layer.site_shape(m.site, dim)) for m in layer.gates]
    return _Part(sum(p.matrix for p in parts), sum(p.other for p in parts))


def _gate(cfg: ModifierConfig, shape: SiteShape) -> _Part:
    if not isinstance(cfg, GateConfig):
        return _Part()
    matrix = 0
    for name in cfg.inputs:
        width = shape.input_width(cfg, name)
        if width is not None:
            groups, out = shape.projection_groups(cfg, name), shape.projection_out(cfg, name)
            inner = width * out if cfg.rank is None else cfg.rank * (width + out)
            matrix += groups * inner
    bias = shape.logit_heads(cfg) * shape.logit_width(cfg) if shape.has_bias(cfg) else 0
    return _Part(matrix, bias)
