"""Attention statistics from queries and keys, in memory linear in the number of tokens.

The weights of a block of queries are computed, reduced and dropped, so that no T x T matrix
exists. Inputs are plain tensors: post-RoPE q and k of any model. The naive twin is
`gatelm.testing.statistics`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from gatelm.analysis.probe.layout import Layout
from gatelm.analysis.probe.protocol import AttentionCall
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.attention.pattern import Pattern
from gatelm.nn.shapes import Bool, Float, Int, Tensor

HIDDEN = -1e30
"""Score of a key that is not seen: finite, so that 0 * score is 0."""


@dataclass(frozen=True)
class AttentionRows:
    """One layer's attention, a few numbers per query and per key.

    With A the weights of a query, keys counted from 1 at the first token of its document:

    lse: log-sum-exp of the scaled scores. first_weight: A_1, 0 where it is not seen.
    entropy: -sum_j A_j ln A_j, nats. entropy_without_first: the same with key 1 removed and the
    others renormalised; 0 when there is no other. max_weight: max_j A_j. max_logit: the largest
    scaled score. importance: of a key, the mean of its weight over the queries that see it
    (alpha_k of arXiv 2410.10781); importance_queries counts those. visible: keys a query sees.
    sees_first: whether key 1 is among them. position: 0-based, in the document. valid: the query
    is no padding.
    """

    lse: Float[Tensor, "B N T"]
    first_weight: Float[Tensor, "B N T"]
    entropy: Float[Tensor, "B N T"]
    entropy_without_first: Float[Tensor, "B N T"]
    max_weight: Float[Tensor, "B N T"]
    max_logit: Float[Tensor, "B N T"]
    importance: Float[Tensor, "B N S"]
    importance_queries: Int[Tensor, "B S"]
    visible: Int[Tensor, "B T"]
    sees_first: Bool[Tensor, "B T"]
    position: Int[Tensor, "B T"]
    valid: Bool[Tensor, "B T"]
    layout: Layout


@torch.no_grad()
def attention_rows(
    q: Float[Tensor, "B T N H"],
    k: Float[Tensor, "B S K H"],
    mask: AttentionMask,
    *,
    scale: float,
    window_tokens: int | None = None,
    softcap: float | None = None,
    sink_logits: Float[Tensor, "N"] | None = None,
    alibi_slopes: tuple[float, ...] | None = None,
    pattern: Pattern | None = None,
    block_elements: int = 1 << 20,
) -> AttentionRows:
    """Statistics of softmax(scale q k^T) under a mask, in float32 (float64 for such inputs).

    q, k: after norm and RoPE; N a multiple of K; the queries are the last T of the S positions.
    softcap: scores become c tanh(score / c). sink_logits: an extra score per head that takes
    weight and has no value. alibi_slopes: one a head, times the distance taken from the scores.
    pattern: what the queries see where it is no window; window_tokens is then not asked.
    block_elements: how many weights exist at a time.
    """
    layout = Layout.of(mask.documents, k.shape[0], k.shape[1], k.device)
    window = k.shape[1] if window_tokens is None or pattern is not None else window_tokens
    offset = k.shape[1] - q.shape[1]
    work = _Work(layout, offset, window, scale, softcap, sink_logits, alibi_slopes, pattern)
    precise = torch.float64 if q.dtype == torch.float64 else torch.float32
    keys = k.to(precise).permute(0, 2, 3, 1)
    sums = keys.new_zeros(q.shape[0], q.shape[2], k.shape[1])
    rows_per_block = max(1, block_elements // (q.shape[0] * q.shape[2] * k.shape[1]))
    # Filled in place: a list of blocks would be a million small tensors in a text of 128k tokens.
    whole = _Block(*(sums.new_empty(*sums.shape[:2], q.shape[1]) for _ in _Block._fields))
    with torch.autocast(q.device.type, enabled=False):
        for start in range(0, q.shape[1], rows_per_block):
            stop = min(start + rows_per_block, q.shape[1])
            block = _block(q[:, start:stop].to(precise), keys, start, work, sums)
            for total, part in zip(whole, block, strict=True):
                total[..., start:stop] = part
    position = work.query(layout.position)
    if pattern is None:
        visible, seen_by = (position + 1).clamp(max=window), _queries_per_key(layout, work)
    else:
        visible, seen_by = _pattern_counts(layout, work, q.shape[1], rows_per_block)
    return AttentionRows(
        **whole._asdict(),
        importance=sums / seen_by.clamp(min=1)[:, None],
        importance_queries=seen_by,
        visible=visible,
        sees_first=_sees_first(work, 0, q.shape[1]),
        position=position,
        valid=work.query(layout.valid),
        layout=layout,
    )


def rows_of_weights(weights: Float[Tensor, "B N T S"], mask: AttentionMask) -> AttentionRows:
    """The same statistics from weights that exist; lse and max_logit are not known, so NaN.

    Entries that the mask hides are 0. A query that can see its document's first token does.
    """
    batch, _, num_queries, num_keys = weights.shape
    layout = Layout.of(mask.documents, batch, num_keys, weights.device)
    work = _Work(layout, num_keys - num_queries, num_keys, 1.0, None, None)
    weights = weights.float()
    position, valid = work.query(layout.position), work.query(layout.valid)
    first = work.query(layout.first)[:, None, :, None].expand(*weights.shape[:3], 1)
    first_weight = weights.gather(-1, first).squeeze(-1)
    rest = weights.scatter(-1, first, 0.0)
    remaining = rest.sum(dim=-1, keepdim=True)
    rest_entropy = torch.special.entr(rest / remaining.clamp(min=1e-30)).sum(dim=-1)
    seen_by = _queries_per_key(layout, work)
    unknown = torch.full_like(first_weight, float("nan"))
    return AttentionRows(
        lse=unknown,
        first_weight=first_weight,
        entropy=torch.special.entr(weights).sum(dim=-1),
        entropy_without_first=rest_entropy,
        max_weight=weights.amax(dim=-1),
        max_logit=unknown,
        importance=torch.einsum("bnts,bt->bns", weights, valid.float())
        / seen_by.clamp(min=1)[:, None],
        importance_queries=seen_by,
        visible=position + 1,
        sees_first=torch.ones_like(valid),
        position=position,
        valid=valid,
        layout=layout,
    )


class WeightBlock(NamedTuple):
    """The weights (B,N,t,s) of the queries start..stop on the keys low..high."""

    start: int
    stop: int
    low: int
    high: int
    weights: Float[Tensor, "B N t s"]


@torch.no_grad()
def weight_blocks(
    call: AttentionCall,
    lse: Float[Tensor, "B N T"],
    layout: Layout,
    *,
    block_elements: int = 1 << 20,
) -> Iterator[WeightBlock]:
    """Yield the weights, one block of queries at a time, in a second pass that knows `lse`."""
    q, k = call.q, call.k
    window = k.shape[1] if call.window_tokens is None else call.window_tokens
    offset = k.shape[1] - q.shape[1]
    work = _Work(
        layout, offset, window, call.scale, call.softcap, call.sink_logits, call.alibi_slopes
    )
    keys = k.to(lse.dtype).permute(0, 2, 3, 1)
    rows_per_block = max(1, block_elements // (q.shape[0] * q.shape[2] * k.shape[1]))
    for start in range(0, q.shape[1], rows_per_block):
        stop = min(start + rows_per_block, q.shape[1])
        low, high = max(0, offset + start - window + 1), offset + stop
        with torch.autocast(q.device.type, enabled=False):
            weights = _scores(q[:, start:stop].to(lse.dtype), keys[..., low:high], work)
            weights = _less_by_distance(weights, work, start, low)
        weights -= lse[..., start:stop, None]
        weights.masked_fill_(~_visible(work, start, stop, low)[:, None], HIDDEN)
        yield WeightBlock(start, stop, low, high, weights.exp_())


class _Work(NamedTuple):
    """The arguments that all blocks of one call share."""

    layout: Layout
    offset: int
    window: int
    scale: float
    softcap: float | None
    sink_logits: Tensor | None
    alibi_slopes: tuple[float, ...] | None = None
    pattern: Pattern | None = None

    def query(self, per_key: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """The entries of a (B,S) tensor that belong to the queries start..stop."""
        end = per_key.shape[1] if stop is None else self.offset + stop
        return per_key[:, self.offset + start : end]


class _Block(NamedTuple):
    lse: Tensor
    first_weight: Tensor
    entropy: Tensor
    entropy_without_first: Tensor
    max_weight: Tensor
    max_logit: Tensor


def _block(q: Tensor, keys: Tensor, start: int, work: _Work, sums: Tensor) -> _Block:
    """Reduce the weights of some queries (B,t,N,H); their column sums are added to `sums` (B,N,S).

    The first key is split off before the softmax, and the row's numbers are put together from the
    two parts by the chain rule: entropy = H(A_1) + (1 - A_1) entropy_without_first.
    """
    stop = start + q.shape[1]
    low = max(0, work.offset + start - work.window + 1)
    high = work.offset + stop
    scores = _less_by_distance(_scores(q, keys[..., low:high], work), work, start, low)
    scores.masked_fill_(~_visible(work, start, stop, low)[:, None], HIDDEN)

    position = work.query(work.layout.position, start, stop)[:, None]
    sees_first = _sees_first(work, start, stop)[:, None]
    first = (work.query(work.layout.first, start, stop) - low).clamp(min=0)
    index = first[:, None, :, None].expand(*scores.shape[:3], 1)
    at_index = scores.gather(-1, index)
    hidden = torch.full_like(at_index, HIDDEN)
    first_score = torch.where(sees_first[..., None], at_index, hidden)
    scores.scatter_(-1, index, torch.where(sees_first[..., None], hidden, at_index))
    first_score = first_score.squeeze(-1)

    rest_max = scores.amax(dim=-1)
    scores -= rest_max[..., None]
    weights = scores.exp()
    total = weights.sum(dim=-1)
    rest_entropy = total.log() - (weights * scores).sum(dim=-1) / total
    rest_lse = rest_max + total.log()
    lse = torch.logaddexp(rest_lse, first_score)
    if work.sink_logits is not None:
        lse = torch.logaddexp(lse, work.sink_logits.to(lse.dtype)[:, None])

    first_weight = (first_score - lse).exp()
    rest_weight = (rest_lse - lse).exp()
    entropy = first_weight * (lse - first_score) + rest_weight * (rest_entropy + lse - rest_lse)
    max_logit = torch.maximum(rest_max, first_score)

    valid = work.query(work.layout.valid, start, stop)[:, None]
    columns = torch.einsum("bnts,bnt->bns", weights, rest_weight / total * valid)
    sums[..., low:high] += columns
    sums.scatter_add_(-1, index.squeeze(-1) + low, first_weight * valid)
    return _Block(
        lse=lse,
        first_weight=first_weight,
        entropy=entropy,
        entropy_without_first=rest_entropy.masked_fill(position == 0, 0.0),
        max_weight=(max_logit - lse).exp(),
        max_logit=max_logit,
    )


def _scores(q: Tensor, keys: Tensor, work: _Work) -> Tensor:
    """scale q k^T (B,N,t,s) of q (B,t,N,H) and keys (B,K,H,s), capped."""
    batch, num_rows, num_heads, width = q.shape
    groups = keys.shape[1]
    grouped = q.unflatten(2, (groups, -1)).permute(0, 2, 3, 1, 4)
    grouped = grouped.reshape(batch, groups, -1, width)
    scores = (grouped @ keys).view(batch, num_heads, num_rows, -1) * work.scale
    return scores if work.softcap is None else work.softcap * torch.tanh(scores / work.softcap)


def _less_by_distance(
    scores: Float[Tensor, "B N t s"], work: _Work, start: int, low: int
) -> Float[Tensor, "B N t s"]:
    """Scores of the queries from `start` on the keys from `low`, less slope times distance."""
    if work.alibi_slopes is None:
        return scores
    i = torch.arange(scores.shape[2], device=scores.device) + work.offset + start
    j = torch.arange(scores.shape[3], device=scores.device) + low
    slopes = torch.tensor(work.alibi_slopes, dtype=scores.dtype, device=scores.device)
    return scores - slopes[:, None, None] * (i[:, None] - j).abs()


def _visible(work: _Work, start: int, stop: int, low: int) -> Bool[Tensor, "B t s"]:
    """Mark the keys from `low` on that the queries start..stop see, by `nn.attention.masks`."""
    high = work.offset + stop
    i = torch.arange(work.offset + start, high, device=work.layout.first.device)[:, None]
    j = torch.arange(low, high, device=i.device)[None, :]
    first = work.query(work.layout.first, start, stop)[..., None]
    if work.pattern is None:
        return ((j <= i) & (i - j < work.window))[None] & (j >= first)
    queries = work.query(work.layout.position, start, stop)[..., None]
    keys = work.layout.position[:, None, low:high]
    return work.pattern.sees(i[None], j[None], queries, keys) & (j >= first)


def _sees_first(work: _Work, start: int, stop: int) -> Bool[Tensor, "B t"]:
    """Whether the queries start..stop see the first token of their document."""
    position = work.query(work.layout.position, start, stop)
    if work.pattern is None:
        return position < work.window
    return work.pattern.sees(position, torch.zeros_like(position), position, position * 0)


def _pattern_counts(
    layout: Layout, work: _Work, num_queries: int, rows_per_block: int
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B S"]]:
    """How many keys each query sees, and how many valid queries see each key."""
    seen_by = torch.zeros_like(layout.position)
    visible = torch.zeros_like(work.query(layout.position))
    for start in range(0, num_queries, rows_per_block):
        stop = min(start + rows_per_block, num_queries)
        seen = _visible(work, start, stop, 0)
        visible[:, start:stop] = seen.sum(dim=-1)
        valid = work.query(layout.valid, start, stop)[..., None]
        seen_by[:, : work.offset + stop] += (seen & valid).sum(dim=1)
    return visible, seen_by


def _queries_per_key(layout: Layout, work: _Work) -> Int[Tensor, "B S"]:
    """How many valid queries see each key."""
    index = torch.arange(layout.first.shape[1], device=layout.first.device)
    end = layout.first + layout.document_tokens()
    last = torch.minimum(end, index + work.window)
    return (last - index.clamp(min=work.offset)).clamp(min=0) * layout.valid
