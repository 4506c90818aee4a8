"""Attention through a window in time and memory linear in the text, by blocks of queries.

A block is at least window - 1 tokens, so that its queries see keys of their own block and of the
one before. All blocks but the first are rows of one batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional as F

from gatelm.nn.attention.backends.base import AttentionOutput
from gatelm.nn.attention.masks import PADDING, AttentionMask
from gatelm.nn.attention.pattern import Pattern
from gatelm.nn.shapes import Bool, Float, Int, Tensor

MIN_BLOCK_TOKENS = 128
"""Least tokens in a block; smaller blocks are not faster in torch's kernels."""
MIN_BLOCKS = 3
OUTSIDE = PADDING - 1
"""Document id of the tokens that fill up the last block."""

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], AttentionOutput]
"""Attention from q, k, v and a mask (b,1,T,S); the last keys are those of the queries' tokens."""


def block_tokens(pattern: Pattern) -> int:
    """Number of tokens in a block, for a pattern with a window."""
    assert pattern.window_tokens is not None
    return max(pattern.window_tokens - 1, MIN_BLOCK_TOKENS)


def is_band(mask: AttentionMask, pattern: Pattern) -> bool:
    """Whether the call is a whole text through a window, long enough for blocks to be faster."""
    if pattern != Pattern(window_tokens=pattern.window_tokens) or pattern.window_tokens is None:
        return False
    whole = mask.num_queries == mask.num_keys == mask.num_tokens and mask.key_index is None
    return whole and mask.num_tokens >= MIN_BLOCKS * block_tokens(pattern)


def attend_band(
    q: Float[Tensor, "B T N H"],
    k: Float[Tensor, "B T K H"],
    v: Float[Tensor, "B T K V"],
    mask: AttentionMask,
    pattern: Pattern,
    attend: Attend,
) -> AttentionOutput:
    """Compute from blocks what `attend` returns under the whole mask."""
    batch, length, size = q.shape[0], q.shape[1], block_tokens(pattern)
    missing = -length % size
    q, k, v = (F.pad(t, (0, 0, 0, 0, 0, missing)) for t in (q, k, v))
    seen, first_seen = _masks(mask, pattern, size, missing)
    first = attend(q[:, :size], k[:, :size], v[:, :size], first_seen)
    queries = q[:, size:].unflatten(1, (-1, size)).flatten(0, 1)
    rest = attend(queries, _pairs(k, size), _pairs(v, size), seen)

    def whole(head: Tensor, tail: Tensor) -> Tensor:
        tail = tail.unflatten(0, (batch, -1)).flatten(1, 2)
        return torch.cat((head, tail), dim=1)[:, :length]

    lse = None
    if first.lse is not None and rest.lse is not None:
        lse = whole(first.lse, rest.lse)
    return AttentionOutput(whole(first.y, rest.y), lse)


def _pairs(t: Float[Tensor, "B S K H"], size: int) -> Float[Tensor, "b s K H"]:
    """Concatenate every block with the one before it, blocks as rows of the batch."""
    blocks = t.unflatten(1, (-1, size))
    return torch.cat((blocks[:, :-1], blocks[:, 1:]), dim=2).flatten(0, 1)


def _masks(
    mask: AttentionMask, pattern: Pattern, size: int, missing: int
) -> tuple[Bool[Tensor, "b 1 C S"], Bool[Tensor, "d 1 C C"]]:
    """Return the masks of the later blocks on two blocks of keys each, and of the first block."""
    key = ("band", pattern)
    if key not in mask.rendered:
        key_index = torch.arange(2 * size, device=mask.device)[None, :]
        seen = pattern.sees(key_index[:, size:].T, key_index)[None]
        first = seen[:, :, size:]
        if mask.documents is not None:
            documents = F.pad(mask.documents, (0, missing), value=OUTSIDE)
            rows = documents.unflatten(1, (-1, size))
            pairs = torch.cat((rows[:, :-1], rows[:, 1:]), dim=2).flatten(0, 1)
            seen = seen & _same(rows[:, 1:].flatten(0, 1), pairs)
            first = first & _same(rows[:, 0], rows[:, 0])
        mask.rendered[key] = seen[:, None], first[:, None]
    return mask.rendered[key]


def _same(queries: Int[Tensor, "b C"], keys: Int[Tensor, "b S"]) -> Bool[Tensor, "b C S"]:
    return queries[:, :, None] == keys[:, None, :]
