"""Parameters, FLOPs and cache bytes, from the config alone: no weight is allocated."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gatelm.nn.block import LayerConfig
from gatelm.nn.cost import ParamCount
from gatelm.nn.ffn.config import NoFFNConfig
from gatelm.nn.gates.gate import SiteNormConfig
from gatelm.nn.model import ModelConfig


@dataclass(frozen=True)
class Count:
    """Parameters by what they belong to; `attention` is that of all mixers."""

    embedding: int
    head: int
    attention: int
    ffn: int
    gate: int
    norm: int
    idle: int = 0
    """Parameters, counted above too, that a token does not use: the experts it is not sent to."""

    @property
    def total(self) -> int:
        """All parameters."""
        return sum(asdict(self).values()) - self.idle

    @property
    def active(self) -> int:
        """Parameters that one token uses."""
        return self.total - self.idle

    @property
    def non_embedding(self) -> int:
        """All parameters without the embeddings."""
        return self.total - self.embedding

    @property
    def gate_share(self) -> float:
        """The gates' part of all parameters."""
        return self.gate / self.total

    def as_dict(self) -> dict[str, Any]:
        """The numbers by name, the totals among them, as `gatelm info --json` has them."""
        parts = asdict(self)
        parts.pop("idle")
        active = {"active": self.active} if self.idle else {}
        return {"total": self.total, **active, **parts, "non_embedding": self.non_embedding}


def count(cfg: ModelConfig) -> Count:
    """Parameters of the model `cfg` describes; equal to the built module's."""
    vocab, dim = _vocab(cfg), cfg.hidden_dim
    learned = cfg.position_embedding.max_tokens * dim if cfg.position_embedding else 0
    layers = [(layer, dim) for layer in cfg.layers()]
    norms = cfg.final_norm.num_weights(dim)
    if cfg.encoder is not None:
        width = cfg.encoder.hidden_dim
        learned += cfg.encoder.input_parameters()
        layers += [(cfg.encoder.layer, width)] * cfg.encoder.num_layers
        norms += cfg.encoder.final_norm.num_weights(width)
    mixers = [layer.mixer.param_count(width) for layer, width in layers]
    ffns = [layer.ffn.param_count(width) for layer, width in layers]
    gates = [_gates(layer, width) for layer, width in layers]
    norms += sum(_block_norms(layer) * layer.norm.num_weights(width) for layer, width in layers)
    return Count(
        embedding=vocab * dim + learned,
        head=vocab * dim if cfg.head == "untied" else 0,
        attention=sum(part.parameters for part in mixers),
        ffn=sum(part.parameters for part in ffns),
        gate=sum(part.parameters for part in gates),
        norm=norms + sum(part.norm for part in (*mixers, *ffns, *gates)),
        idle=sum(part.idle for part in (*mixers, *ffns)),
    )


def flops_per_token(cfg: ModelConfig, seq_len: int, *, training: bool = True) -> int:
    """Matrix-product FLOPs per token at `seq_len`; training = 3 x forward.

    Attention counts the whole T x T square, as kernels' counters do: no discount for causality or
    windows. Norms (but for their gates' matrices), activations, the gate's own product and what is
    done once a row (an encoder, keys and values of a memory) are not counted.
    """
    dim = cfg.hidden_dim
    forward = 2 * _vocab(cfg) * dim + 2 * cfg.final_norm.matrix_entries(dim)
    for layer in cfg.layers():
        part = layer.mixer.param_count(dim) + layer.ffn.param_count(dim) + _gates(layer, dim)
        forward += 2 * (part.matrix - part.idle)
        forward += layer.mixer.mixing_flops_per_token(dim, seq_len)
        forward += 2 * _norm_matrices(layer, dim)
    return 3 * forward if training else forward


def cache_bytes(cfg: ModelConfig, num_tokens: int, bytes_per_value: int = 2) -> int:
    """Bytes of one sequence's cache after `num_tokens` tokens, all layers.

    Gates add none, but those on keys and values make latent attention cache these.
    """
    return bytes_per_value * sum(
        layer.mixer.cached_values(cfg.hidden_dim, num_tokens, [m.site for m in layer.gates])
        for layer in cfg.layers()
    )


def kv_bytes_per_token(cfg: ModelConfig, bytes_per_value: int = 2) -> int:
    """Bytes the cache grows by with each token while nothing is dropped from it."""
    return cache_bytes(cfg, 2, bytes_per_value) - cache_bytes(cfg, 1, bytes_per_value)


def match_ffn_dim(cfg: ModelConfig, target_total: int, multiple: int = 8) -> int:
    """The `layer.ffn.ffn_dim`, a multiple of `multiple`, whose model comes nearest to the target.

    Raises:
        ValueError: when even the smallest FFN has more parameters.
    """
    if isinstance(cfg.layer.ffn, NoFFNConfig):
        raise ValueError("model.layer.ffn.ffn_dim: the layer has no feed-forward network to widen")
    ffn = cfg.layer.ffn

    def total(ffn_dim: int) -> int:
        layer = cfg.layer.replace(ffn=ffn.replace(ffn_dim=ffn_dim))
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


def _block_norms(layer: LayerConfig) -> int:
    sublayers = 1 if isinstance(layer.ffn, NoFFNConfig) else 2
    return sublayers * (2 if layer.norm_placement == "sandwich" else 1)


def _norm_matrices(layer: LayerConfig, dim: int) -> int:
    """Entries of the matrices in norms' gates, counted once for each time a token passes them."""
    total = _block_norms(layer) * layer.norm.matrix_entries(dim)
    for modifier in layer.gates:
        if isinstance(modifier, SiteNormConfig):
            shape = layer.site_shape(modifier.site, dim)
            total += shape.num_heads * modifier.norm.matrix_entries(shape.head_dim)
    return total


def _gates(layer: LayerConfig, dim: int) -> ParamCount:
    """Parameters of what sits at the layer's sites."""
    parts = [m.param_count(layer.site_shape(m.site, dim)) for m in layer.gates]
    return sum(parts, ParamCount())
