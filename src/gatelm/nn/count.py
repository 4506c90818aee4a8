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
    """Numbers of parameters by part of the model; `attention` counts all mixers."""

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
        """Return the numbers by name, with totals, as `gatelm info --json` prints them."""
        parts = asdict(self)
        parts.pop("idle")
        active = {"active": self.active} if self.idle else {}
        return {"total": self.total, **active, **parts, "non_embedding": self.non_embedding}


def count(cfg: ModelConfig) -> Count:
    """Count the parameters of the model that `cfg` describes, exactly as the built module has."""
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
    """Count matrix-product FLOPs per token at `seq_len`; training takes 3 x forward.

    Attention counts the whole T x T square, as kernels' counters do: no discount for causality or
    windows. Norms (but for their gates' matrices), activations, the gate's own product and what is
    done once a row (an encoder, keys and values of a second sequence) are not counted.
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
    """Count the bytes of one sequence's cache after `num_tokens` tokens, in all layers.

    Gates add none, but those on keys and values make latent attention cache these.
    """
    return bytes_per_value * sum(
        layer.mixer.cached_values(cfg.hidden_dim, num_tokens, [m.site for m in layer.gates])
        for layer in cfg.layers()
    )


def kv_bytes_per_token(cfg: ModelConfig, bytes_per_value: int = 2) -> int:
    """Count the bytes by which each token enlarges the cache while nothing is dropped."""
    return cache_bytes(cfg, 2, bytes_per_value) - cache_bytes(cfg, 1, bytes_per_value)


def _vocab(cfg: ModelConfig) -> int:
    if cfg.vocab_size is None:
        raise ValueError("model.vocab_size: needed to count parameters (training data sets it)")
    return cfg.vocab_size


def _block_norms(layer: LayerConfig) -> int:
    sublayers = 1 if isinstance(layer.ffn, NoFFNConfig) else 2
    return sublayers * (2 if layer.norm_placement == "sandwich" else 1)


def _norm_matrices(layer: LayerConfig, dim: int) -> int:
    """Count the matrix entries in norms' gates, once for each time a token passes them."""
    total = _block_norms(layer) * layer.norm.matrix_entries(dim)
    for modifier in layer.gates:
        if isinstance(modifier, SiteNormConfig):
            shape = layer.site_shape(modifier.site, dim)
            total += shape.num_heads * modifier.norm.matrix_entries(shape.head_dim)
    return total


def _gates(layer: LayerConfig, dim: int) -> ParamCount:
    """Count the parameters of the modifiers at the layer's sites."""
    parts = [m.param_count(layer.site_shape(m.site, dim)) for m in layer.gates]
    return sum(parts, ParamCount())
