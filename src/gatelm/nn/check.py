"""Combinations that cannot work, refused when a config is read, with what would do."""

from __future__ import annotations

import warnings

from gatelm.config import ConfigError
from gatelm.nn.backends import BACKENDS
from gatelm.nn.block import LayerConfig
from gatelm.nn.gate import GateConfig, SiteShape


def check_layer(layer: LayerConfig, hidden_dim: int, index: int) -> None:
    """Raises ConfigError for a layer that cannot work; warns of settings without effect."""
    mixer = layer.mixer
    where = f"layer {index}: mixer"
    if mixer.head_dim is None and hidden_dim % mixer.num_heads:
        raise ConfigError(
            f"{where}.num_heads: hidden_dim {hidden_dim} is not a multiple of {mixer.num_heads} "
            "heads; change one of them, or set mixer.head_dim"
        )
    if mixer.num_heads % mixer.kv_heads:
        raise ConfigError(
            f"{where}.num_kv_heads: {mixer.num_heads} query heads cannot be divided among "
            f"{mixer.kv_heads} key/value heads; use a divisor of {mixer.num_heads}"
        )
    if mixer.rope is not None:
        rotary_dim = mixer.width(hidden_dim) * mixer.rope.partial_factor
        if rotary_dim != int(rotary_dim) or int(rotary_dim) % 2 or rotary_dim < 2:
            raise ConfigError(
                f"{where}.rope: {rotary_dim:g} of {mixer.width(hidden_dim)} channels cannot turn "
                "in pairs; choose head_dim and rope.partial_factor for an even number"
            )
    if mixer.dropout and not BACKENDS[mixer.backend].capabilities.dropout:
        raise ConfigError(f"{where}.dropout: the {mixer.backend} backend has none")
    _check_sites(layer, hidden_dim, index)


def _check_sites(layer: LayerConfig, hidden_dim: int, index: int) -> None:
    seen: set[str] = set()
    for number, modifier in enumerate(layer.gates):
        where = f"layer {index}: gates.{number}"
        if modifier.site in seen:
            raise ConfigError(f"{where}.site: {modifier.site!r} already has a gate; one per site")
        seen.add(modifier.site)
        if isinstance(modifier, GateConfig):
            _check_gate(modifier, layer, layer.site_shape(modifier.site, hidden_dim), where)


def _check_gate(gate: GateConfig, layer: LayerConfig, shape: SiteShape, where: str) -> None:
    _check_inputs(gate, layer, shape, where)
    _check_granularity(gate, layer, shape, where)
    if gate.top_k is not None:
        _check_top_k(gate, shape, where)
    heads = shape.logit_heads(gate)
    if gate.sharing in ("per_kv_group", "shared", "mean") and shape.num_heads == 1:
        raise ConfigError(f"{where}.sharing: {gate.site!r} has one head; use per_head")
    if gate.sharing == "per_kv_group" and heads == shape.num_heads:
        warnings.warn(
            f"{where}.sharing: per_kv_group equals per_head at {gate.site!r}, where each head is a "
            "group of its own",
            stacklevel=2,
        )


def _check_inputs(gate: GateConfig, layer: LayerConfig, shape: SiteShape, where: str) -> None:
    if not gate.inputs:
        raise ConfigError(f"{where}.inputs: empty; use [const] for a gate without input")
    if len(set(gate.inputs)) != len(gate.inputs):
        raise ConfigError(f"{where}.inputs: {list(gate.inputs)} names an input twice")
    if "q" in gate.inputs and gate.site in ("q", "ffn"):
        instead = "y, which is the query there" if gate.site == "q" else "x or y"
        raise ConfigError(f"{where}.inputs: q cannot be read at {gate.site!r}; use {instead}")
    if gate.needs_lse:
        if gate.site != "sdpa" or gate.sharing not in ("per_head", "mean"):
            raise ConfigError(
                f"{where}.inputs: lse is one number per query head, so it goes with site sdpa and "
                "sharing per_head"
            )
        if not BACKENDS[layer.mixer.backend].capabilities.lse:
            able = [name for name, b in BACKENDS.items() if b.capabilities.lse]
            raise ConfigError(
                f"{where}.inputs: lse is not returned by mixer.backend {layer.mixer.backend!r}; "
                f"use {' or '.join(able)}"
            )
    if gate.input_dim is not None:
        if not {"x", "resid"} & set(gate.inputs):
            raise ConfigError(f"{where}.input_dim: only x and resid can be cut; inputs has neither")
        if gate.input_dim > shape.hidden_dim:
            raise ConfigError(f"{where}.input_dim: {gate.input_dim} of {shape.hidden_dim} channels")
    if gate.rank is not None and not {"x", "resid", "q", "y"} & set(gate.inputs):
        raise ConfigError(f"{where}.rank: none of the inputs {list(gate.inputs)} has a projection")


def _check_granularity(gate: GateConfig, layer: LayerConfig, shape: SiteShape, where: str) -> None:
    scales = gate.granularity == "head" and gate.operation == "mul"
    if scales and gate.site in ("q", "k") and layer.mixer.qk_norm is not None:
        raise ConfigError(
            f"{where}: a headwise gate at {gate.site!r} is undone by mixer.qk_norm, which rescales "
            f"each head; use site {gate.site}_rot, or granularity element"
        )
    if scales and gate.site in ("out", "ffn") and layer.norm_placement == "sandwich":
        raise ConfigError(
            f"{where}: one score per token at {gate.site!r} is undone by the sandwich norm after "
            "it; use granularity element, or norm_placement pre"
        )


def _check_top_k(gate: GateConfig, shape: SiteShape, where: str) -> None:
    assert gate.top_k is not None
    if gate.top_k.over == "channels":
        if gate.granularity == "head":
            raise ConfigError(f"{where}.top_k: over channels needs granularity element")
        available = shape.head_dim
    else:
        if gate.sharing in ("shared", "mean"):
            raise ConfigError(f"{where}.top_k: over heads needs a score per head, not shared ones")
        available = shape.num_heads
    if gate.top_k.k >= available:
        raise ConfigError(
            f"{where}.top_k.k: {gate.top_k.k} of {available} {gate.top_k.over} keeps everything; "
            f"use fewer than {available}"
        )
