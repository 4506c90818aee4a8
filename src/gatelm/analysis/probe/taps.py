"""Where a model keeps its taps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from gatelm.nn.attention.module import Attention
from gatelm.nn.gates.gate import Gate
from gatelm.nn.gates.sites import BACKEND_TAPS, BLOCK_SITES, BLOCK_TAPS, SITES


def decoder(model: nn.Module) -> Any:
    """The decoder inside a compiled or data-parallel model.

    A compiled graph does not see hooks that are added later; the module it was made from does.

    Raises:
        ValueError: when there is none.
    """
    for attribute in ("_orig_mod", "module"):
        inner = getattr(model, attribute, None)
        if isinstance(inner, nn.Module):
            return decoder(inner)
    if not isinstance(getattr(model, "layers", None), nn.ModuleList):
        raise ValueError(f"{type(model).__name__} has no `layers` to read: not a gatelm decoder")
    return model


def blocks(model: nn.Module) -> list[Any]:
    """The layers of a decoder."""
    return list(decoder(model).layers)


def layer_indices(model: nn.Module, layers: Iterable[int] | None) -> list[int]:
    """Layers by their non-negative index; None means all.

    Raises:
        ValueError: for an index that is no layer.
    """
    count = len(blocks(model))
    chosen = range(count) if layers is None else layers
    for layer in chosen:
        if not -count <= layer < count:
            raise ValueError(f"there is no layer {layer}: the model has {count}")
    return [layer % count for layer in chosen]


def tap_at(model: nn.Module, layer: int, tap: str) -> nn.Module | None:
    """The module of a tap in one layer; None when nothing passes there."""
    block = blocks(model)[layer]
    attention = getattr(block, "attn", None)
    if tap in BLOCK_TAPS:
        return block.taps[tap]
    if tap in BACKEND_TAPS:
        if isinstance(attention, Attention) and attention.backend.capabilities.probs:
            return attention.backend_taps[tap]
        return None
    site = tap.removesuffix("_gate").removesuffix("_gated")
    sites = block.gates if site in BLOCK_SITES else getattr(attention, "gates", None)
    if sites is None or tap not in sites.taps:
        return None
    if tap.endswith("_gate") and not (site in sites and isinstance(sites[site], Gate)):
        return None
    return sites.taps[tap]


def gate_sites(model: nn.Module) -> list[tuple[int, str]]:
    """(layer, site) of every gate."""
    return [
        (layer, site)
        for layer in range(len(blocks(model)))
        for site in SITES
        if tap_at(model, layer, f"{site}_gate") is not None
    ]


def attention_layers(model: nn.Module) -> dict[int, Attention]:
    """The layers whose mixer is softmax attention among the tokens of the text."""
    return {
        index: block.attn
        for index, block in enumerate(blocks(model))
        if isinstance(getattr(block, "attn", None), Attention) and block.attn.cfg.memory is None
    }
