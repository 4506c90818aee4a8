"""Attention of the last T of S tokens on a CPU, without a mask: for texts read in chunks.

The keys before the chunk are seen by all of its queries, so they need no mask; the chunk's own keys
need only the kernel's causal flag. Two kernels and their log-sum-exps give the whole. Query heads
that share a key head stand in the rows of one matrix, so that keys and values are not repeated.
"""

from __future__ import annotations

import torch

from gatelm.nn.shapes import Float, Tensor

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def can_attend_tail(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether `attend_tail` can do this: fewer queries than keys, a CPU, no gradient."""
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    return (
        q.shape[1] < k.shape[1]
        and q.device.type == "cpu"
        and q.dtype in _DTYPES
        and q.dtype == k.dtype == v.dtype
        and q.shape[-1] == v.shape[-1]
        and not needs_grad
        and hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
    )


def attend_tail(
    q: Float[Tensor, "B T N H"],
    k: Float[Tensor, "B S K H"],
    v: Float[Tensor, "B S K H"],
    scale: float,
) -> tuple[Float[Tensor, "B T N H"], Float[Tensor, "B T N"]]:
    """softmax(scale q k^T) v, and the log-sum-exp in float32; query i sees keys 0..S-T+i."""
    batch, num_new, num_heads, width = q.shape
    groups, old = k.shape[2], k.shape[1] - num_new
    folded = q.unflatten(2, (groups, -1)).permute(0, 2, 3, 1, 4).reshape(batch, groups, -1, width)
    if num_new == 1:  # it sees all keys
        y, lse = _kernel(folded, k, v, causal=False, scale=scale)
        return y.reshape(batch, 1, num_heads, width), lse.reshape(batch, 1, num_heads)
    before, lse_before = _kernel(folded, k[:, :old], v[:, :old], causal=False, scale=scale)
    before = before.reshape(batch, num_heads, num_new, width)
    lse_before = lse_before.reshape(batch, num_heads, num_new)
    repeat = num_heads // groups
    own_k, own_v = (t[:, old:].repeat_interleave(repeat, dim=2) for t in (k, v))
    own, lse_own = _kernel(q.transpose(1, 2), own_k, own_v, causal=True, scale=scale)
    share = torch.sigmoid(lse_before - lse_own)[..., None].to(own.dtype)
    y = torch.lerp(own, before, share)
    return y.transpose(1, 2), torch.logaddexp(lse_before, lse_own).transpose(1, 2)


def _kernel(
    q: Float[Tensor, "B K n H"],
    k: Float[Tensor, "B s K H"],
    v: Float[Tensor, "B s K H"],
    *,
    causal: bool,
    scale: float,
) -> tuple[Float[Tensor, "B K n H"], Float[Tensor, "B K n"]]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k.transpose(1, 2), v.transpose(1, 2), 0.0, causal, scale=scale
    )
