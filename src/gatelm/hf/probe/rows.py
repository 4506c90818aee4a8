"""Documents as rows of their own, a form that every model of transformers computes rightly.

Models disagree about packed documents, padding on the left, and positions next to padding; hybrids
with recurrent layers leak across documents. So each document becomes a row that starts at index 0
with padding after it, where a causal model cannot see it, and tensors are put back in place.
"""

from __future__ import annotations

import torch

from gatelm.nn.attention.masks import PADDING
from gatelm.nn.shapes import Float, Int, Tensor


class DocumentRows:
    """Map between a batch and rows that hold one document each."""

    def __init__(self, tokens: Int[Tensor, "B T"], documents: Int[Tensor, "B T"] | None):
        self.batch, self.num_tokens = tokens.shape
        self._index: Tensor | None = None
        if documents is not None and not _is_plain(documents):
            begins = torch.ones_like(documents, dtype=torch.bool)
            begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
            kept = documents != PADDING
            number = begins.logical_and(kept).flatten().cumsum(0).view_as(documents) - 1
            column = torch.arange(self.num_tokens, device=tokens.device).expand_as(documents)
            column = column - torch.where(begins, column, 0).cummax(dim=1).values
            self._kept = kept.flatten()
            self.num_rows = int(number.max()) + 1
            self.row_tokens = int(column[kept].max()) + 1 if self.num_rows else 0
            self._index = (number * self.row_tokens + column).flatten()[self._kept]
            if not self.num_rows:
                raise ValueError("nothing but padding to run the model on")

    @property
    def row_length(self) -> int:
        """Number of tokens in a row: those of the longest document."""
        return self.num_tokens if self._index is None else self.row_tokens

    def inward(self, x: Float[Tensor, "B T *rest"]) -> Float[Tensor, "R t *rest"]:
        """Move values from the batch's layout to rows, with zeros after the end of a document."""
        if self._index is None:
            return x
        out = x.new_zeros(self.num_rows * self.row_tokens, *x.shape[2:])
        out[self._index] = x.flatten(0, 1)[self._kept]
        return out.view(self.num_rows, self.row_tokens, *x.shape[2:])

    def outward(self, x: Float[Tensor, "R t *rest"]) -> Float[Tensor, "B T *rest"]:
        """Move values from rows to the batch's layout, with zeros at padding."""
        if self._index is None:
            return x
        out = x.new_zeros(self.batch * self.num_tokens, *x.shape[2:])
        out[self._kept] = x.flatten(0, 1)[self._index]
        return out.view(self.batch, self.num_tokens, *x.shape[2:])

    def outward_weights(self, weights: Float[Tensor, "R N t t"]) -> Float[Tensor, "B N T T"]:
        """Move attention weights from rows to the batch's layout, with zeros between documents."""
        if self._index is None:
            return weights
        size = (self.batch, weights.shape[1], self.num_tokens, self.num_tokens)
        out = weights.new_zeros(size)
        place = torch.full((self.num_rows, self.row_tokens), -1, device=weights.device)
        place.view(-1)[self._index] = self._kept.nonzero().squeeze(-1)
        for row, at in enumerate(place):
            at = at[at >= 0]
            begin, b = int(at[0]) % self.num_tokens, int(at[0]) // self.num_tokens
            here = slice(begin, begin + len(at))
            out[b, :, here, here] = weights[row, :, : len(at), : len(at)]
        return out


def _is_plain(documents: Int[Tensor, "B T"]) -> bool:
    """Whether every row is one document without padding."""
    return bool((documents == documents[:, :1]).all() and (documents[:, 0] != PADDING).all())
