"""The log-sum-exp of scores from a kernel that returns outputs only, with its gradient.

One key more, seen by all queries, has the score r and carries the values (0, ..., 0, 1, 0), while
every other key carries (v, 0, 1). The output's two channels more are then the null key's weight
a = exp(r) / Z and the others' b, so that lse = r + ln b - ln a, and the output without the null key
is y / b. r is the query's score on its own token: b is then never below 1/2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from gatelm.nn.shapes import Float, Tensor

Kernel = Callable[[Tensor, Tensor, Tensor], Tensor]
"""q (B,T+1,N,W), k (B,S+1,K,W), v (B,S+1,K,W) to the heads' outputs; entry 0 of each is the null
key's, or a query that counts for nothing."""


def attend_with_lse(
    q: Float[Tensor, "B T N H"],
    k: Float[Tensor, "B S K H"],
    v: Float[Tensor, "B S K V"],
    scale: float,
    kernel: Kernel,
) -> tuple[Float[Tensor, "B T N V"], Float[Tensor, "B T N"]]:
    """Return the heads' outputs and the log-sum-exp (float32, or float64 for such inputs).

    The last T keys are the queries' own.
    """
    width, values = q.shape[-1], v.shape[-1]
    padded = -(-max(width + 1, values + 2) // 8) * 8
    own = k[:, -q.shape[1] :].repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    at_null = (q.detach() * own.detach()).sum(dim=-1, keepdim=True)
    q = F.pad(torch.cat((q, at_null), dim=-1), (0, padded - width - 1, 0, 0, 1, 0))
    k = F.pad(k, (0, padded - width, 0, 0, 1, 0))
    k[:, 0, :, width] = 1.0
    v = F.pad(v, (0, padded - values, 0, 0, 1, 0))
    v[:, 0, :, values], v[:, 1:, :, values + 1] = 1.0, 1.0
    out = kernel(q, k, v)[:, 1:]
    wide = torch.promote_types(out.dtype, torch.float32)
    null, others = out[..., values].to(wide), out[..., values + 1].to(wide)
    y = out[..., :values] / others[..., None].to(out.dtype)
    smallest = torch.finfo(wide).tiny
    lse = scale * at_null[..., 0].to(wide) + others.log() - null.clamp(min=smallest).log()
    return y, lse
