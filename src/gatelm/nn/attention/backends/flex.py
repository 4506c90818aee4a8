"""Backend of torch's flex attention: its kernel skips blocks without a visible pair."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, no_type_check

import torch

from gatelm.nn.attention.backends.base import AttentionOutput, Capabilities, Observe
from gatelm.nn.attention.masks import AttentionMask, CrossMask
from gatelm.nn.attention.pattern import Pattern
from gatelm.nn.shapes import Float, Tensor

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


class FlexBackend:
    """Flex attention on a GPU, with time and memory in proportion to the visible keys.

    On a CPU torch has its forward only, and all scores are in memory: it serves as a comparison.
    """

    capabilities = Capabilities(lse=True, probs=False, dropout=False, backward=("cuda",))

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
        # imported late: it brings torch's compiler, which others need not wait for
        from torch.nn.attention.flex_attention import AuxRequest

        heads = [t.transpose(1, 2) for t in (q, k, v)]
        blocks = None if mask.sees_everything(pattern) else block_mask(mask, pattern, q.shape[0])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            y, more = _kernel(q.device.type)(
                *heads,
                score_mod=_bias(mask, pattern),
                block_mask=blocks,
                scale=scale,
                enable_gqa=q.shape[2] != k.shape[2],
                return_aux=AuxRequest(lse=True),
            )
        return AttentionOutput(
            y.transpose(1, 2), more.lse.transpose(1, 2) if lse == "return" else None
        )


def block_mask(mask: AttentionMask, pattern: Pattern, batch: int) -> BlockMask:
    """Return the blocks of queries and keys with a visible pair, and the rule inside them."""
    key = ("flex", pattern)
    if key not in mask.rendered:
        rule, per_row = _rule(mask, pattern)
        mask.rendered[key] = _create(mask.device)(
            rule,
            batch if per_row else None,
            None,
            mask.num_queries,
            mask.num_keys,
            device=mask.device,
        )
    return mask.rendered[key]


def _rule(mask: AttentionMask, pattern: Pattern) -> tuple[Callable[..., Tensor], bool]:
    """Return the rule for a query and a key by their indices, and whether rows differ."""
    if isinstance(mask, CrossMask):
        seen = mask.dense(pattern)[:, 0, 0]
        return (lambda b, h, i, j: seen[b, j]), True
    positions, documents = mask.positions, mask.documents
    index = mask.key_index
    before, dropped = mask.num_tokens - mask.num_queries, mask.num_tokens - mask.num_keys

    @no_type_check
    def rule(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        query = i + before
        row = b if index is None or len(index) > 1 else 0
        key = j + dropped if index is None else index[row, j]
        real = key >= 0
        key = torch.where(real, key, 0)
        row = b if len(positions) > 1 else 0
        seen = pattern.sees(query, key, positions[row, query], positions[row, key])
        if documents is not None:
            seen = seen & (documents[b, query] == documents[b, key])
        return seen & real

    return rule, documents is not None or (index is not None and len(index) > 1)


def _bias(mask: AttentionMask, pattern: Pattern) -> Callable[..., Tensor] | None:
    if pattern.alibi_slopes is None:
        return None
    slopes = torch.tensor(pattern.alibi_slopes, device=mask.device)
    before, dropped = mask.num_tokens - mask.num_queries, mask.num_tokens - mask.num_keys
    index = mask.key_index

    @no_type_check
    def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row = b if index is None or len(index) > 1 else 0
        key = j + dropped if index is None else index[row, j]
        return score - slopes[h] * (i + before - key).abs()

    return add


@cache
def _compiled(name: str) -> Any:
    return torch.compile(_function(name), dynamic=False)


def _function(name: str) -> Any:
    from torch.nn.attention import flex_attention

    return getattr(flex_attention, name)


def _kernel(device_type: str) -> Any:
    compiled = device_type == "cuda" and not torch.compiler.is_compiling()
    return (_compiled if compiled else _function)("flex_attention")


def _create(device: torch.device | None) -> Any:
    on_gpu = device is not None and device.type == "cuda"
    compiled = on_gpu and not torch.compiler.is_compiling()
    return (_compiled if compiled else _function)("create_block_mask")
