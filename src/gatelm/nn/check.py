"""Combinations that cannot work, refused when a config is read, with what would do."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator

from gatelm.config import ConfigError
from gatelm.nn.attention.backends import BACKENDS
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.attention.cross import CrossConfig
from gatelm.nn.block import LayerConfig
from gatelm.nn.ffn.config import NoFFNConfig
from gatelm.nn.gates.gate import GateConfig, SiteShape
from gatelm.nn.gates.sites import BLOCK_SITES, SITES


def check_layer(layer: LayerConfig, hidden_dim: int, index: int) -> None:
    """Raises ConfigError for a layer that cannot work; warns of settings without effect."""
    layer.mixer.check(hidden_dim, f"layer {index}: mixer")
    _check_sites(layer, hidden_dim, index)


def check_backward(layers: Iterable[LayerConfig], device_type: str) -> None:
    """Raises ConfigError for an attention backend without gradients on a type of device."""
    for index, layer in enumerate(layers):
        if not isinstance(layer.mixer, AttentionConfig):
            continue
        able = BACKENDS[layer.mixer.backend].capabilities.backward
        if able is not None and device_type not in able:
            raise ConfigError(
                f"layer {index}: mixer.backend: {layer.mixer.backend!r} has no gradients on "
                f"{device_type}; use sdpa, or {' or '.join(able)}"
            )


def cross_configs(layers: Iterable[LayerConfig]) -> Iterator[CrossConfig]:
    """Return the configs of the layers that read a second sequence."""
    for layer in layers:
        if isinstance(layer.mixer, AttentionConfig) and layer.mixer.memory is not None:
            yield layer.mixer.memory


def _check_sites(layer: LayerConfig, hidden_dim: int, index: int) -> None:
    seen: set[str] = set()
    offered = (*layer.mixer.sites, *(() if isinstance(layer.ffn, NoFFNConfig) else BLOCK_SITES))
    for number, modifier in enumerate(layer.gates):
        where = f"layer {index}: gates.{number}"
        if modifier.site not in offered:
            raise ConfigError(
                f"{where}.site: a layer with mixer.kind {layer.mixer.kind!r} and ffn.kind "
                f"{layer.ffn.kind!r} has no {modifier.site!r}; use {' or '.join(offered)}"
            )
        if modifier.site in seen:
            raise ConfigError(f"{where}.site: {modifier.site!r} already has a gate; one per site")
        seen.add(modifier.site)
        _check_turned_late(layer, modifier.site, where)
        if isinstance(modifier, GateConfig):
            _check_gate(modifier, layer, layer.site_shape(modifier.site, hidden_dim), where)


def _check_turned_late(layer: LayerConfig, site: str, where: str) -> None:
    rope = getattr(layer.mixer, "rope", None)
    if site == "k_rot" and rope is not None and rope.length_dependent:
        raise ConfigError(
            f"{where}.site: k_rot comes after the rotation, which mixer.rope.scaling makes anew "
            "for cached keys; use site k, or a scaling such as yarn"
        )


def _check_gate(gate: GateConfig, layer: LayerConfig, shape: SiteShape, where: str) -> None:
    _check_inputs(gate, shape, where)
    layer.mixer.check_gate(gate, where)
    scales = gate.granularity == "head" and gate.operation == "mul"
    if scales and SITES[gate.site].tensor == "branch" and layer.norm_placement == "sandwich":
        raise ConfigError(
            f"{where}: one score per token at {gate.site!r} is undone by the sandwich norm after "
            "it; use granularity element, or norm_placement pre"
        )
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


def _check_inputs(gate: GateConfig, shape: SiteShape, where: str) -> None:
    if not gate.inputs:
        raise ConfigError(f"{where}.inputs: empty; use [const] for a gate without input")
    if len(set(gate.inputs)) != len(gate.inputs):
        raise ConfigError(f"{where}.inputs: {list(gate.inputs)} names an input twice")
    unreadable = SITES[gate.site].unreadable
    if "q" in gate.inputs and "q" in unreadable:
        instead = "y, which is the query there" if gate.site == "q" else "x or y"
        raise ConfigError(f"{where}.inputs: q cannot be read at {gate.site!r}; use {instead}")
    if "q_rot" in gate.inputs and "q_rot" in unreadable:
        raise ConfigError(
            f"{where}.inputs: q_rot cannot be read at {gate.site!r}, which comes before; use x"
        )
    if gate.needs_lse and ("lse" in unreadable or gate.sharing not in ("per_head", "mean")):
        raise ConfigError(
            f"{where}.inputs: lse is one number per query head, so it goes with site sdpa and "
            "sharing per_head"
        )
    if gate.input_dim is not None:
        if not {"x", "resid"} & set(gate.inputs):
            raise ConfigError(f"{where}.input_dim: only x and resid can be cut; inputs has neither")
        if gate.input_dim > shape.hidden_dim:
            raise ConfigError(f"{where}.input_dim: {gate.input_dim} of {shape.hidden_dim} channels")
    if gate.rank is not None and not {"x", "resid", "q", "q_rot", "y"} & set(gate.inputs):
        raise ConfigError(f"{where}.rank: none of the inputs {list(gate.inputs)} has a projection")


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
