"""Shared parts of recurrences in chunks: the split, and the decays within a chunk."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn import functional as F

from gatelm.nn.mixers.short_conv import segments
from gatelm.nn.shapes import Bool, Float, Tensor


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Disable autocast in the block; the meta device, on which costs are counted, has none."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def to_chunks(x: Tensor, chunk_tokens: int) -> Tensor:
    """Split (B,T,N,...) into (B,N,C,L,...): C chunks of L tokens, zeros after the last token."""
    missing = -x.shape[1] % chunk_tokens
    if missing:
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, missing))
    return x.unflatten(1, (-1, chunk_tokens)).movedim(3, 1).contiguous()


def from_chunks(x: Float[Tensor, "B N C L W"], length: int) -> Float[Tensor, "B T N W"]:
    """Undo `to_chunks`, keeping the first `length` tokens."""
    return x.movedim(1, 3).flatten(1, 2)[:, :length]


def decays(
    log_decay: Float[Tensor, "B N C L"], starts: Bool[Tensor, "B T"] | None
) -> tuple[Float[Tensor, "B N C L L"], Float[Tensor, "B N C L"]]:
    """Return the decays at token i of the writes of token j in its chunk, and of the state before.

    between[i, j] = exp(sum of log_decay over j < m <= i) for j <= i, else 0; since[i] =
    exp(sum over m <= i). Both are 0 across the beginning of a document (`starts`).

    Sums are taken from j on, not as differences of cumulative sums, in which a strong decay early
    in the chunk would cancel the digits of the others.
    """
    length = log_decay.shape[-1]
    square = torch.ones(length, length, dtype=torch.bool, device=log_decay.device)
    summed = log_decay[..., None].expand(*log_decay.shape, length)
    summed = summed.masked_fill(~square.tril(-1), 0.0).cumsum(dim=-2)
    between = summed.masked_fill(square.triu(1), float("-inf")).exp()
    since = log_decay.cumsum(dim=-1).exp()
    if starts is None:
        return between, since
    same, continues = _within_documents(starts, log_decay.shape[2], length)
    return between * same, since * continues


def _within_documents(
    starts: Bool[Tensor, "B T"], num_chunks: int, length: int
) -> tuple[Bool[Tensor, "B 1 C L L"], Bool[Tensor, "B 1 C L"]]:
    """Return whether tokens share a document, and whether their document began before the chunk."""
    document = segments(starts)
    missing = num_chunks * length - document.shape[1]
    document = torch.cat((document, document[:, -1:].expand(-1, missing)), dim=1)
    document = document.unflatten(1, (num_chunks, length))
    before = torch.cat((torch.zeros_like(document[:, :1, -1]), document[:, :-1, -1]), dim=1)
    same = document[..., :, None] == document[..., None, :]
    return same[:, None], (document == before[..., None])[:, None]
