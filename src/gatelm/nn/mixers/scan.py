"""A decaying sum of outer products, read by queries: what linear attention and Mamba-2 compute.

    S_t = exp(a_t) S_(t-1) + k_t v_t^T,    y_t = S_t^T q_t

Within a chunk this is attention without a softmax, between chunks only the state is handed on
(arXiv 2405.21060, section 6).
"""

from __future__ import annotations

import torch

from gatelm.nn.mixers.chunks import decays, from_chunks, full_precision, to_chunks
from gatelm.nn.precision import to_float32
from gatelm.nn.shapes import Bool, Float, Tensor

CHUNK_TOKENS = 64


def scan(
    q: Float[Tensor, "B T M Q"],
    k: Float[Tensor, "B T K Q"],
    v: Float[Tensor, "B T N W"],
    log_decay: Float[Tensor, "B T N"] | None,
    starts: Bool[Tensor, "B T"] | None,
    state: Float[Tensor, "B N Q W"] | None,
) -> tuple[Float[Tensor, "B T P W"], Float[Tensor, "B N Q W"]]:
    """Compute y and the state after the last token, in float32.

    Each of K heads of k serves M/K heads of q and N/K of v in a row, and one of the two is K; y has
    as many heads P as the other. log_decay: a, at most 0; None: nothing is forgotten. starts:
    tokens that begin a document, where the state is. state: of the call before.
    """
    length, groups = q.shape[1], k.shape[2]
    chunk = min(CHUNK_TOKENS, length)
    with full_precision(q):
        # heads as (groups, heads in a group)
        q, k, v = (to_chunks(to_float32(t), chunk).unflatten(1, (groups, -1)) for t in (q, k, v))
        if log_decay is None:
            a = q.new_zeros(1 if starts is None else q.shape[0], 1, *q.shape[3:5])
        else:
            a = to_chunks(to_float32(log_decay), chunk)
        between, since = decays(a, starts)
        per_group = groups if log_decay is not None else 1
        between, since = (t.unflatten(1, (per_group, -1)) for t in (between, since))
        y = (q @ k.mT * between) @ v
        written = k.mT @ (v * between[..., -1, :, None])
        if state is None:
            state = torch.zeros_like(written[:, :, :, 0])
        else:
            state = to_float32(state).unflatten(1, (groups, -1))
        before = []
        for c in range(written.shape[3]):
            before.append(state)
            state = state * since[:, :, :, c, -1, None, None] + written[:, :, :, c]
        y = y + (q @ torch.stack(before, dim=3)) * since[..., None]
        return from_chunks(y.flatten(1, 2), length), state.flatten(1, 2)


def scan_flops_per_token(
    seq_len: int, heads: tuple[int, int, int], key_width: int, value_width: int
) -> int:
    """Count matrix-product FLOPs of `scan` with heads of (q, k, v)."""
    queries, _, values = heads
    chunk = min(CHUNK_TOKENS, seq_len)
    outputs = max(queries, values)
    within = chunk * (queries * key_width + outputs * value_width)
    return 2 * (within + (outputs + values) * key_width * value_width)
