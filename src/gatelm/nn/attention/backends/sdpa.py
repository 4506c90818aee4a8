"""torch's fused scaled dot-product attention."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal

import torch
from torch.nn import functional as F

from gatelm.nn.attention.backends.band import attend_band, is_band
from gatelm.nn.attention.backends.base import AttentionOutput, Capabilities, Observe
from gatelm.nn.attention.backends.null_key import attend_with_lse
from gatelm.nn.attention.backends.tail import attend_tail, can_attend_tail
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.attention.pattern import Pattern
from gatelm.nn.shapes import Float, Tensor

BF16_PAYS_FROM_TOKENS = 512
"""Length from which torch's bf16 kernel is as fast as its fp32 kernel on a CPU."""


class SdpaBackend:
    """`F.scaled_dot_product_attention`: no T x T matrix in memory where torch has a kernel.

    On a CPU, short bf16 rows are attended in fp32: torch's CPU kernel is up to twice as slow in
    bf16 there (benchmarks/attention_dtype.py), and fp32 is the more exact. The last tokens of a
    text that is read in chunks are attended without a mask (see `tail`), and long texts through a
    window in blocks (see `band`). torch returns no log-sum-exp; where it is wanted, one more key
    gives it (see `null_key`).
    """

    capabilities = Capabilities(lse=True, probs=False, dropout=True)

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
        dtype = torch.float32 if _slow_in_bf16(v) else v.dtype
        if not dropout and mask.is_causal_tail(pattern) and can_attend_tail(q, k, v):
            y, log_sums = attend_tail(q.to(dtype), k.to(dtype), v.to(dtype), scale)
            return AttentionOutput(y.to(v.dtype), log_sums)

        def attend(
            q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, causal: bool = False
        ) -> AttentionOutput:
            if lse == "skip":
                y = _attend(q, k, v, added, dtype, causal, scale, dropout)
                return AttentionOutput(y, None)
            one_more = None if added is None else _one_more(added)

            def kernel(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                return _attend(q, k, v, one_more, dtype, causal, scale, 0.0)

            y, log_sums = attend_with_lse(q, k, v, scale, kernel)
            if dropout:
                y = _attend(q, k, v, added, dtype, causal, scale, dropout)
            return AttentionOutput(y, log_sums)

        if is_band(mask, pattern):
            return attend_band(q, k, v, mask, pattern, attend)
        causal = mask.is_plain_causal(pattern)
        plain = causal or mask.sees_everything(pattern)
        return attend(q, k, v, None if plain else _additive(mask, pattern, dtype), causal)


def _attend(
    q: Float[Tensor, "B T N H"],
    k: Float[Tensor, "B S K H"],
    v: Float[Tensor, "B S K V"],
    added: Tensor | None,
    dtype: torch.dtype,
    causal: bool,
    scale: float,
    dropout: float,
) -> Float[Tensor, "B T N V"]:
    with torch.autocast("cpu", enabled=False) if dtype != v.dtype else nullcontext():
        y = F.scaled_dot_product_attention(
            *(t.to(dtype).transpose(1, 2) for t in _of_one_width(q, k, v)),
            attn_mask=added,
            dropout_p=dropout,
            is_causal=causal,
            scale=scale,
            enable_gqa=q.shape[2] != k.shape[2],
        )
    return y[..., : v.shape[-1]].transpose(1, 2).to(v.dtype)


def _of_one_width(*heads: Tensor) -> list[Tensor]:
    """Pad with zeros to one width: for different widths torch has only the T x T kernel."""
    width = max(t.shape[-1] for t in heads)
    return [F.pad(t, (0, width - t.shape[-1])) if t.shape[-1] < width else t for t in heads]


def _additive(mask: AttentionMask, pattern: Pattern, dtype: torch.dtype) -> Tensor:
    """Return the mask as torch takes it: what may be seen, or what is added to the scores."""
    dense, bias = mask.dense(pattern), mask.bias(pattern)
    if bias is None:
        return dense
    return bias.masked_fill(~dense, float("-inf")).to(dtype)


def _one_more(added: Tensor) -> Tensor:
    """Extend the mask with a first query that is ignored and a first key that all queries see."""
    seen = 1.0 if added.dtype == torch.bool else 0.0
    return F.pad(added, (1, 0, 1, 0), value=seen)


def _slow_in_bf16(v: Tensor) -> bool:
    short = v.shape[1] < BF16_PAYS_FROM_TOKENS
    return short and v.device.type == "cpu" and v.dtype == torch.bfloat16
