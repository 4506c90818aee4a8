"""torch's fused scaled dot-product attention."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal

import torch
from torch.nn import functional as F

from gatelm.nn.backends.base import AttentionOutput, Capabilities, Observe
from gatelm.nn.backends.tail import attend_tail, can_attend_tail
from gatelm.nn.masks import AttentionMask
from gatelm.nn.pattern import Pattern
from gatelm.nn.shapes import Float, Tensor

BF16_PAYS_FROM_TOKENS = 512
"""On a CPU: where torch's bf16 kernel has caught up with its fp32 kernel."""


class SdpaBackend:
    """`F.scaled_dot_product_attention`: no T x T matrix in memory where torch has a kernel.

    On a CPU, short bf16 rows are attended in fp32: torch's CPU kernel is up to twice as slow in
    bf16 there (benchmarks/attention_dtype.py), and fp32 is the more exact. The last tokens of a
    text that is read in chunks are attended without a mask (see `tail`).
    """

    capabilities = Capabilities(lse=False, probs=False, dropout=True)

    def __call__(
        self,
        q: Float[Tensor, "B T N H"],
        k: Float[Tensor, "B S K H"],
        v: Float[Tensor, "B S K H"],
        *,
        mask: AttentionMask,
        pattern: Pattern,
        scale: float,
        dropout: float,
        observe: Observe,
        lse: Literal["skip", "return"] = "skip",
    ) -> AttentionOutput:
        if not dropout and mask.is_causal_tail(pattern) and can_attend_tail(q, k, v):
            return AttentionOutput(*attend_tail(q, k, v, scale))
        causal = mask.is_plain_causal(pattern)
        plain = causal or mask.sees_everything(pattern)
        in_fp32 = _slow_in_bf16(v)
        dtype = torch.float32 if in_fp32 else v.dtype
        with torch.autocast("cpu", enabled=False) if in_fp32 else nullcontext():
            y = F.scaled_dot_product_attention(
                *(t.to(dtype).transpose(1, 2) for t in (q, k, v)),
                attn_mask=None if plain else _additive(mask, pattern, dtype),
                dropout_p=dropout,
                is_causal=causal,
                scale=scale,
                enable_gqa=q.shape[2] != k.shape[2],
            )
        return AttentionOutput(y.transpose(1, 2).to(v.dtype), None)


def _additive(mask: AttentionMask, pattern: Pattern, dtype: torch.dtype) -> Tensor:
    """The mask as torch takes it: what may be seen, or what is added to the scores."""
    dense, bias = mask.dense(pattern), mask.bias(pattern)
    if bias is None:
        return dense
    return bias.masked_fill(~dense, float("-inf")).to(dtype)


def _slow_in_bf16(v: Tensor) -> bool:
    short = v.shape[1] < BF16_PAYS_FROM_TOKENS
    return short and v.device.type == "cpu" and v.dtype == torch.bfloat16
