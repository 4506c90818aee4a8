"""An attention function for transformers that shows its inputs, in linear memory where it can.

Registered under `NAME`; a model uses it while its config says so. Its masks are those of the
library's sdpa. Outside of `showing` it is an ordinary attention function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from gatelm.nn.shapes import Bool, Float, Tensor

NAME = "gatelm_show"
BLOCK_ELEMENTS = 1 << 22
"""Largest number of scores in memory where transformers' kernel cannot be used."""


@dataclass(frozen=True, eq=False)
class Seen:
    """One call of attention: heads (B,N,T,H) as in transformers; mask True where a key is seen.

    unknown: names of tensors that the family passes beside these, whose meaning is not known here.
    """

    module: nn.Module
    q: Float[Tensor, "B N T H"]
    k: Float[Tensor, "B K S H"]
    v: Float[Tensor, "B K S V"]
    mask: Bool[Tensor, "b 1 T S"] | None
    causal: bool
    scale: float
    softcap: float | None
    sink_logits: Float[Tensor, "N"] | None
    has_bias: bool
    unknown: tuple[str, ...] = ()


HARMLESS = frozenset(
    {"position_ids", "cache_position", "cu_seq_lens_q", "cu_seq_lens_k", "position_bias"}
)
"""Arguments that add nothing for a kernel that has the mask; a bias is handled separately."""

Shown = Callable[[Seen], Tensor | None]
"""Called before the attention is computed; returns values to use instead, or None."""
Computed = Callable[[Seen, Tensor], None]
"""Called with the heads' outputs (B,T,N,V)."""

_listeners: list[tuple[Shown, Computed]] = []


@contextmanager
def showing(shown: Shown, computed: Computed) -> Iterator[None]:
    """Call these functions for every attention in the block."""
    _listeners.append((shown, computed))
    try:
        yield
    finally:
        _listeners.pop()


@contextmanager
def implementation(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Run a model under an attention implementation, then restore its own."""
    configs = {id(m.config): m.config for m in model.modules() if isinstance(m, PreTrainedModel)}
    before = {key: config._attn_implementation for key, config in configs.items()}
    try:
        for config in configs.values():
            config._attn_implementation = name
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation = before[key]


def attention_that_shows(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature: heads (B,N,T,H) in, (B,T,N,V) out, no weights."""
    causal = kwargs.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    seen = Seen(
        module=module,
        q=query,
        k=key,
        v=value,
        mask=attention_mask,
        causal=bool(causal),
        scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        softcap=softcap,
        sink_logits=s_aux,
        has_bias=kwargs.get("position_bias") is not None
        or (attention_mask is not None and attention_mask.dtype != torch.bool),
        unknown=tuple(
            name
            for name, value in kwargs.items()
            if isinstance(value, Tensor) and name not in HARMLESS
        ),
    )
    listener = _listeners[-1] if _listeners else None
    if listener is not None and (changed := listener[0](seen)) is not None:
        seen = replace(seen, v=changed)
    if softcap is None and s_aux is None:
        kwargs = {**kwargs, "dropout": 0.0}
        output, _ = sdpa_attention_forward(
            module, query, key, seen.v, attention_mask, scaling=scaling, **kwargs
        )
    else:
        output = attend(seen)
    if listener is not None:
        listener[1](seen, output)
    return output, None


def attend(seen: Seen) -> Float[Tensor, "B T N V"]:
    """Softmax attention with a cap on the scores and logits of sinks, a block of queries at a time.

    float32 inside, like the library's eager functions; the result has the values' dtype.
    """
    batch, num_heads, num_queries, _ = seen.q.shape
    num_keys, group = seen.k.shape[2], num_heads // seen.k.shape[1]
    k = seen.k.float().repeat_interleave(group, dim=1).transpose(-1, -2)
    v = seen.v.float().repeat_interleave(group, dim=1)
    rows = max(1, BLOCK_ELEMENTS // (batch * num_heads * num_keys))
    out = []
    for start in range(0, num_queries, rows):
        stop = min(start + rows, num_queries)
        scores = seen.q[:, :, start:stop].float() @ k * seen.scale
        if seen.softcap is not None:
            scores = seen.softcap * torch.tanh(scores / seen.softcap)
        visible = visible_keys(seen, start, stop)
        if visible is not None:
            scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        if seen.sink_logits is not None:
            sinks = seen.sink_logits.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            weights = torch.cat((scores, sinks), dim=-1).softmax(dim=-1)[..., :-1]
        else:
            weights = scores.softmax(dim=-1)
        out.append((weights @ v).to(seen.v.dtype))
    return torch.cat(out, dim=2).transpose(1, 2).contiguous()


def visible_keys(seen: Seen, start: int, stop: int) -> Bool[Tensor, "b 1 t S"] | None:
    """Mark the keys that the queries start..stop see; None if they see all."""
    if seen.mask is not None:
        return seen.mask[:, :, start:stop]
    if not seen.causal:
        return None
    num_queries, num_keys = seen.q.shape[2], seen.k.shape[2]
    first = num_keys - num_queries
    i = torch.arange(first + start, first + stop, device=seen.q.device)[:, None]
    return (torch.arange(num_keys, device=seen.q.device) <= i)[None, None]


def window_of(mask: Bool[Tensor, "b 1 T S"]) -> int | None:
    """Return the w of a mask in which query i sees the keys 0 <= i - j < w (T: all before it).

    None when the mask is none of these.
    """
    num_tokens = mask.shape[-1]
    if mask.shape[-2] != num_tokens:
        return None
    window = int(mask[0, 0, -1].sum())
    j = torch.arange(num_tokens, device=mask.device)
    rows = max(1, BLOCK_ELEMENTS // num_tokens)
    for start in range(0, num_tokens, rows):
        i = j[start : start + rows, None]
        expected = (j <= i) & (i - j < window)
        if not bool((mask[:, :, start : start + rows] == expected).all()):
            return None
    return window


AttentionInterface.register(NAME, attention_that_shows)
AttentionMaskInterface.register(NAME, sdpa_mask)
