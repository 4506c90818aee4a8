"""Attention with one more key and value, the naive twin of a virtual sink's gate."""

from __future__ import annotations

import torch

from gatelm.nn.shapes import Float, Tensor


def attend_with_sink(
    q: Float[Tensor, "T N H"],
    k: Float[Tensor, "T K H"],
    v: Float[Tensor, "T K V"],
    sink_k: Float[Tensor, "K H"],
    sink_v: Float[Tensor, "K V"],
    scale: float,
) -> Float[Tensor, "T N V"]:
    """Causal softmax attention in which every query also sees `sink_k`, whose value is `sink_v`."""
    group = q.shape[1] // k.shape[1]
    rows = []
    for i in range(q.shape[0]):
        heads = []
        for n in range(q.shape[1]):
            keys = torch.cat((sink_k[n // group][None], k[: i + 1, n // group]))
            values = torch.cat((sink_v[n // group][None], v[: i + 1, n // group]))
            heads.append(torch.softmax(scale * keys @ q[i, n], dim=0) @ values)
        rows.append(torch.stack(heads))
    return torch.stack(rows)
