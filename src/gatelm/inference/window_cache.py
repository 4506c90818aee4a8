"""A cache of the first tokens and of the last ones, positions counted in the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from gatelm.analysis.probe.protocol import AttentionCall
from gatelm.analysis.probe.rotation import Rotation
from gatelm.nn.shapes import Bool, Float, Tensor


@dataclass
class _Kept:
    """Unrotated keys and values of one layer."""

    first_k: Tensor
    first_v: Tensor
    recent_k: Tensor
    recent_v: Tensor


@dataclass
class WindowCache:
    """Cache of the keys and values of all layers; the kernel `attend` uses and fills it.

    All tokens of a chunk are computed at once and give what they would one by one: a key is in
    the cache of a query if it is among the first, or near enough.
    """

    rotations: Mapping[int, Rotation]
    first_tokens: int
    window_tokens: int
    num_tokens: int = 0
    _kept: dict[int, _Kept] = field(default_factory=dict)

    def commit(self, num_new: int) -> None:
        """Count the tokens that every layer has now seen."""
        self.num_tokens += num_new

    def attend(self, call: AttentionCall) -> tuple[Tensor, Tensor]:
        """Return the heads' outputs (1,T,N,H) and lse (1,T,N) of the next T tokens."""
        kept, start, num_new = self._extend(call), self.num_tokens, call.q.shape[1]
        device, rotation = call.q.device, self.rotations[call.layer]
        query = torch.arange(start, start + num_new, device=device)
        recent = torch.arange(start + num_new - kept.recent_k.shape[1], start + num_new)
        recent = recent.to(device)
        first = torch.arange(kept.first_k.shape[1], device=device)
        # A position in the cache differs from that in the text by the same for query and window,
        # so the window may count from its own start; the first keys need the query's real place.
        base = int(recent[0])
        in_cache = query.clamp(max=self.first_tokens + self.window_tokens - 1)
        precise = torch.float64 if call.q.dtype == torch.float64 else torch.float32
        q, first_k, recent_k = (t.to(precise) for t in (call.q, kept.first_k, kept.recent_k))
        scores = torch.cat(
            (
                _scores(rotation.apply(q, in_cache), rotation.apply(first_k, first)),
                _scores(rotation.apply(q, query - base), rotation.apply(recent_k, recent - base)),
            ),
            dim=-1,
        )
        own_window = call.window_tokens or self.first_tokens + self.window_tokens
        visible = torch.cat(
            (
                self._sees_first(query, in_cache, first, own_window),
                _sees_recent(query, recent, min(own_window, self.window_tokens)),
            ),
            dim=-1,
        )
        values = torch.cat((kept.first_v, kept.recent_v), dim=1)
        return _softmax(scores * call.scale, visible, values, call)

    def _sees_first(
        self, query: Tensor, in_cache: Tensor, first: Tensor, own_window: int
    ) -> Bool[Tensor, "T f"]:
        """Mark first keys that have left the window and are near enough in the cache."""
        evicted = query[:, None] - first >= self.window_tokens
        return evicted & (in_cache[:, None] - first < own_window)

    def _extend(self, call: AttentionCall) -> _Kept:
        """Return the keys and values for this chunk's queries, and keep the next chunk's."""
        old = self._kept.get(call.layer)
        k, v = call.k, call.v
        new_first = max(0, self.first_tokens - self.num_tokens)
        first_k, first_v, recent_k, recent_v = k[:, :new_first], v[:, :new_first], k, v
        if old is not None:
            first_k = torch.cat((old.first_k, first_k), dim=1)
            first_v = torch.cat((old.first_v, first_v), dim=1)
            recent_k = torch.cat((old.recent_k, k), dim=1)
            recent_v = torch.cat((old.recent_v, v), dim=1)
        needed = max(0, recent_k.shape[1] - (self.window_tokens - 1))
        self._kept[call.layer] = _Kept(
            first_k, first_v, recent_k[:, needed:].clone(), recent_v[:, needed:].clone()
        )
        return _Kept(first_k, first_v, recent_k, recent_v)


def _sees_recent(query: Tensor, recent: Tensor, window: int) -> Bool[Tensor, "T s"]:
    distance = query[:, None] - recent
    return (distance >= 0) & (distance < window)


def _scores(q: Float[Tensor, "1 T N H"], k: Float[Tensor, "1 s K H"]) -> Float[Tensor, "N T s"]:
    """Compute q k^T in q's precision."""
    groups = k.shape[2]
    grouped = q[0].unflatten(1, (groups, -1)).permute(1, 2, 0, 3)
    keys = k[0].to(q.dtype).permute(1, 2, 0)[:, None]
    return (grouped @ keys).flatten(0, 1)


def _softmax(
    scores: Float[Tensor, "N T s"],
    visible: Bool[Tensor, "T s"],
    values: Float[Tensor, "1 s K H"],
    call: AttentionCall,
) -> tuple[Float[Tensor, "1 T N H"], Float[Tensor, "1 T N"]]:
    """Compute the weighted values, and the log-sum-exp over the keys alone."""
    if call.softcap is not None:
        scores = call.softcap * torch.tanh(scores / call.softcap)
    scores = scores.masked_fill(~visible, float("-inf"))
    lse = scores.logsumexp(dim=-1)
    total = lse
    if call.sink_logits is not None:
        total = torch.logaddexp(lse, call.sink_logits.to(lse.dtype)[:, None])
    weights = (scores - total[..., None]).exp()
    groups = values.shape[2]
    grouped = weights.unflatten(0, (groups, -1))
    heads = (grouped @ values[0].to(weights.dtype).transpose(0, 1)[:, None]).flatten(0, 1)
    return heads.transpose(0, 1)[None].to(call.v.dtype), lse.transpose(0, 1)[None]
