"""What the cache keeps of a layer with a window: the keys that later queries can still see."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gatelm.nn.masks import AttentionMask
from gatelm.nn.pattern import Pattern
from gatelm.nn.shapes import Float, Int, Tensor


@dataclass
class Ring:
    """The last window - 1 tokens, after those of the first that have left the window.

    first_index: index in the row of the tokens kept beside the last ones, -1 for none. Memory is
    bounded by the window whatever the length of the text.
    """

    k: Float[Tensor, "B L K H"]
    v: Float[Tensor, "B L K V"]
    first_index: Int[Tensor, "b n"] | None = None

    @property
    def num_first(self) -> int:
        return 0 if self.first_index is None else self.first_index.shape[1]


def extend_ring(
    ring: Ring | None,
    k: Float[Tensor, "B T K H"],
    v: Float[Tensor, "B T K V"],
    mask: AttentionMask,
    pattern: Pattern,
) -> tuple[Float[Tensor, "B L K H"], Float[Tensor, "B L K V"], AttentionMask, Ring]:
    """Keys and values in reach of this call's queries, their mask, and what is kept after it."""
    assert pattern.window_tokens is not None
    index: Tensor | None = None
    if ring is not None:
        k, v = torch.cat((ring.k, k), dim=1), torch.cat((ring.v, v), dim=1)
        recent = k.shape[1] - ring.num_first
        if ring.first_index is None:
            mask = mask.last(recent)
        else:
            index = _with_recent(ring.first_index, mask, recent)
            mask = mask.at((pattern.window_tokens, pattern.first_tokens), index)
    keep = min(mask.num_tokens, pattern.window_tokens - 1)
    recent_k, recent_v = (t[:, t.shape[1] - keep :] for t in (k, v))
    if not pattern.first_tokens or mask.num_tokens <= keep:
        return k, v, mask, Ring(recent_k.clone(), recent_v.clone())
    first = _evicted_first(mask, pattern, keep)
    if index is None:
        index = torch.arange(mask.num_tokens - k.shape[1], mask.num_tokens, device=k.device)[None]
    at = (index[:, None, :] == first[:, :, None]).int().argmax(dim=-1)
    first_k, first_v = (_take(t, at) for t in (k, v))
    new = Ring(torch.cat((first_k, recent_k), 1), torch.cat((first_v, recent_v), 1), first)
    return k, v, mask, new


def _with_recent(first: Int[Tensor, "b n"], mask: AttentionMask, recent: int) -> Int[Tensor, "B L"]:
    """Row indices of the first keys and of the `recent` last ones."""
    last = torch.arange(mask.num_tokens - recent, mask.num_tokens, device=first.device)
    return torch.cat((first, last.expand(len(first), -1)), dim=1)


def _evicted_first(mask: AttentionMask, pattern: Pattern, keep: int) -> Int[Tensor, "b n"]:
    """Row indices of the first tokens of each row's last document; -1 for those still in reach."""
    begins = mask.num_tokens - 1 - mask.places[:, -1:]
    first = begins + torch.arange(pattern.first_tokens, device=begins.device)
    return torch.where(first < mask.num_tokens - keep, first, -1)


def _take(t: Float[Tensor, "B L K H"], at: Int[Tensor, "b n"]) -> Float[Tensor, "B n K H"]:
    at = at.expand(len(t), -1)[..., None, None].expand(-1, -1, *t.shape[2:])
    return t.gather(1, at)
