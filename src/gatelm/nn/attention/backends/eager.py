"""Attention written out: the reference, with every intermediate at a tap."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional as F

from gatelm.nn.attention.backends.base import AttentionOutput, Capabilities, Observe
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.attention.pattern import Pattern
from gatelm.nn.shapes import Float, Tensor


class EagerBackend:
    """Materialises scores and probabilities; softmax in float32."""

    capabilities = Capabilities(lse=True, probs=True, dropout=True)

    def __call__(
        self,
        q: Float[Tensor, "B T N H"],
        k: Float[Tensor, "B S K H"],
        v: Float[Tensor, "B S K V"],
        *,
        mask: AttentionMask,
        pattern: Pattern,
        scale: float,
        dropout: float,
        observe: Observe,
        lse: Literal["skip", "return"] = "skip",
    ) -> AttentionOutput:
        group = q.shape[2] // k.shape[2]
        q_heads, k_heads, v_heads = (t.transpose(1, 2) for t in (q, k, v))
        if group > 1:
            k_heads = k_heads.repeat_interleave(group, dim=1)
            v_heads = v_heads.repeat_interleave(group, dim=1)
        scores = q_heads @ k_heads.transpose(-1, -2) * scale
        if scores.dtype != torch.float64:
            scores = scores.float()
        bias = mask.bias(pattern)
        if bias is not None:
            scores = scores + bias
        scores = scores.masked_fill(~mask.dense(pattern), float("-inf"))
        scores = observe("scores", scores)
        log_sums = observe("lse", scores.logsumexp(dim=-1).transpose(1, 2))
        probs = observe("probs", scores.softmax(dim=-1))
        weights = F.dropout(probs, dropout) if dropout else probs
        y = weights.to(v_heads.dtype) @ v_heads
        return AttentionOutput(y.transpose(1, 2), log_sums)
