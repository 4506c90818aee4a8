"""Attention maps of a short sample, to be looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.attention.pattern import Pattern
from gatelm.nn.shapes import Float, Tensor

Decode = Callable[[list[int]], list[str]]
"""Display strings of token ids."""


def attention_map(
    q: Float[Tensor, "T N H"],
    k: Float[Tensor, "T K H"],
    *,
    scale: float,
    window_tokens: int | None,
    softcap: float | None = None,
    sink_logits: Float[Tensor, " N"] | None = None,
    alibi_slopes: tuple[float, ...] | None = None,
    pattern: Pattern | None = None,
) -> Float[Tensor, "N T T"]:
    """All weights of one short document, queries in rows; with a learned sink rows sum to < 1."""
    num_tokens = q.shape[0]
    k = k.float().repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    with torch.autocast(q.device.type, enabled=False):
        scores = torch.einsum("tnh,snh->nts", q.float(), k) * scale
    seen = AttentionMask(num_tokens, num_tokens, device=q.device).dense(
        pattern or Pattern(window_tokens)
    )[0, 0]
    if alibi_slopes is not None:
        place = torch.arange(num_tokens, device=q.device)
        slopes = torch.tensor(alibi_slopes, device=q.device)[:, None, None]
        scores = scores - slopes * (place[:, None] - place).abs()
    scores = scores.masked_fill(~seen, float("-inf"))
    lse = scores.logsumexp(dim=-1)
    if sink_logits is not None:
        lse = torch.logaddexp(lse, sink_logits.float()[:, None])
    return (scores - lse[..., None]).exp()


def evenly(count: int, most: int) -> list[int]:
    """Choose at most `most` of the indices 0..count-1, spread evenly, both ends included."""
    if count <= most:
        return list(range(count))
    if most == 1:
        return [count - 1]
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def maps_entry(tokens: list[str], maps: dict[int, Tensor], max_maps: int) -> dict[str, Any]:
    """The entry `attention_maps` of analysis.json, from maps (N,T,T) by layer.

    All heads of all layers, or of some layers spread evenly over the depth.
    """
    layers = list(maps)
    num_heads = max(len(heads) for heads in maps.values())
    chosen = evenly(len(layers), max(1, max_maps // num_heads))
    return {
        "tokens": tokens,
        "maps": [
            {
                "layer": layers[i],
                "head": head,
                "weights": [[round(w, 4) for w in row] for row in maps[layers[i]][head].tolist()],
            }
            for i in chosen
            for head in evenly(len(maps[layers[i]]), max_maps)
        ],
    }
