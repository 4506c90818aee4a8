"""Naive attention statistics: every T x T matrix written out, one formula a line."""

from __future__ import annotations

from typing import Any

import torch

from gatelm.nn.attention.masks import PADDING, AttentionMask
from gatelm.nn.attention.pattern import Pattern
from gatelm.nn.shapes import Float, Tensor


def naive_weights(
    q: Float[Tensor, "B T N H"],
    k: Float[Tensor, "B S K H"],
    mask: AttentionMask,
    *,
    scale: float,
    window_tokens: int | None = None,
    pattern: Pattern | None = None,
    softcap: float | None = None,
    sink_logits: Float[Tensor, "N"] | None = None,
    alibi_slopes: tuple[float, ...] | None = None,
) -> tuple[Float[Tensor, "B N T S"], Float[Tensor, "B N T S"], Float[Tensor, "B N T"]]:
    """Compute scores (-inf where hidden), weights and log-sum-exp."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scores = torch.einsum("btnh,bsnh->bnts", q, k) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    bias = mask.bias(Pattern(alibi_slopes=alibi_slopes))
    scores = scores if bias is None else scores + bias
    scores = scores.masked_fill(~mask.dense(pattern or Pattern(window_tokens)), float("-inf"))
    lse = scores.logsumexp(dim=-1)
    if sink_logits is not None:
        lse = torch.logaddexp(lse, sink_logits[:, None])
    return scores, (scores - lse[..., None]).exp(), lse


def naive_attention_rows(
    q: Float[Tensor, "B T N H"], k: Float[Tensor, "B S K H"], mask: AttentionMask, **options: Any
) -> dict[str, Tensor]:
    """Compute the fields of `AttentionRows` by loops and full matrices.

    options: those of `naive_weights`.
    """
    scores, weights, lse = naive_weights(q, k, mask, **options)
    pattern = options.get("pattern") or Pattern(options.get("window_tokens"))
    batch, heads, num_queries, num_keys = weights.shape
    offset = num_keys - num_queries
    documents = mask.documents
    if documents is None:
        documents = torch.zeros(batch, num_keys, dtype=torch.long)
    allowed = mask.dense(pattern).expand(batch, 1, -1, -1)[:, 0]
    rows = {
        name: torch.zeros(batch, heads, num_queries, dtype=weights.dtype)
        for name in ("first_weight", "entropy", "entropy_without_first")
    }
    whole = {
        "visible": allowed.sum(dim=-1),
        "sees_first": torch.zeros(batch, num_queries, dtype=torch.bool),
        "position": torch.zeros(batch, num_queries, dtype=torch.long),
        "valid": documents[:, offset:] != PADDING,
    }
    for b in range(batch):
        for i in range(num_queries):
            first = i + offset
            while first > 0 and documents[b, first - 1] == documents[b, i + offset]:
                first -= 1
            whole["position"][b, i] = i + offset - first
            whole["sees_first"][b, i] = allowed[b, i, first]
            row = weights[b, :, i]
            others = row.clone()
            others[:, first] = 0.0
            remaining = others.sum(dim=-1, keepdim=True)
            rows["first_weight"][b, :, i] = row[:, first]
            rows["entropy"][b, :, i] = torch.special.entr(row).sum(dim=-1)
            if (remaining > 0).all():
                rest = torch.special.entr(others / remaining).sum(dim=-1)
                rows["entropy_without_first"][b, :, i] = rest
    counted = weights * whole["valid"][:, None, :, None]
    queries = (allowed & whole["valid"][..., None]).sum(dim=1)
    return {
        "lse": lse,
        **rows,
        "max_weight": weights.amax(dim=-1),
        "max_logit": scores.amax(dim=-1),
        "importance": counted.sum(dim=2) / queries.clamp(min=1)[:, None],
        "importance_queries": queries,
        **whole,
    }
