"""Attention masks and position ids of transformers, turned into document ids."""

from __future__ import annotations

import torch

from gatelm.nn.attention.masks import PADDING, positions_in_documents
from gatelm.nn.shapes import Bool, Int, Tensor


def documents_of(
    attention_mask: Tensor | None,
    position_ids: Tensor | None,
    shape: tuple[int, int],
    num_cached: int,
    device: torch.device,
) -> Int[Tensor, "B S"] | None:
    """Return document ids of all tokens, cached ones first; None for rows of one document.

    attention_mask: (B,S), 0 at padding. position_ids: (B,T) of packed rows, a document begins where
        they do not go on by 1; read without cached tokens only. shape: (B,T) of the new tokens.

    Raises:
        ValueError: for a mask or positions that cannot be meant so.
    """
    batch, num_new = shape
    documents = torch.zeros((batch, num_cached + num_new), dtype=torch.long, device=device)
    real = torch.ones_like(documents, dtype=torch.bool)
    if attention_mask is not None:
        real = _checked(attention_mask, documents.shape).to(device)
    if position_ids is not None and num_cached == 0 and num_new > 1:
        position_ids = position_ids.to(device).expand(batch, -1)
        documents = _packed(position_ids, real)
    plain = bool(real.all()) and not bool(documents.any())
    documents = documents.masked_fill(~real, PADDING)
    if position_ids is not None and num_cached == 0:
        _check_positions(position_ids.to(device).expand(batch, -1), documents)
    return None if plain else documents


def _packed(position_ids: Int[Tensor, "B T"], real: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Number the documents; one begins where a position does not follow the last real token's."""
    index = torch.arange(real.shape[1], device=real.device).expand_as(real)
    last_real = torch.where(real, index, 0).cummax(dim=1).values[:, :-1]
    expected = position_ids.gather(1, last_real) + 1
    first = real.cumsum(dim=1)[:, 1:] == 1
    begins = real[:, 1:] & ~first & (position_ids[:, 1:] != expected)
    documents = torch.zeros_like(position_ids)
    documents[:, 1:] = begins.cumsum(dim=1)
    return documents


def is_packed(documents: Int[Tensor, "B S"]) -> bool:
    """Whether a row holds more than one document."""
    first = documents.masked_fill(documents == PADDING, documents.shape[1]).amin(dim=1)
    return bool((documents.amax(dim=1) > first).any())


def padding_to_the_left(
    tokens: Int[Tensor, "B T"], attention_mask: Int[Tensor, "B T"]
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Move padding to the front of each row, so that the row ends with its last real token."""
    order = attention_mask.bool().long().argsort(dim=1, stable=True)
    return tokens.gather(1, order), attention_mask.gather(1, order)


def _checked(attention_mask: Tensor, shape: torch.Size) -> Tensor:
    if attention_mask.dim() != 2:
        raise ValueError(
            f"attention_mask: has {attention_mask.dim()} axes; only (batch, tokens) with 0 at "
            "padding can be read"
        )
    if attention_mask.shape != shape:
        raise ValueError(
            f"attention_mask: has shape {tuple(attention_mask.shape)} for {tuple(shape)} tokens, "
            "cached ones included; give it for all of them"
        )
    return attention_mask.bool()


def _check_positions(position_ids: Tensor, documents: Tensor) -> None:
    wrong = (positions_in_documents(documents) != position_ids) & (documents != PADDING)
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"position_ids: {int(position_ids[row, column])} at token {column} of row {row}; "
            "positions count from 0 in each document, without a gap"
        )
