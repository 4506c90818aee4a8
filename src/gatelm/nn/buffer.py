"""A tensor that grows along its second axis without copying what is there at every step."""

from __future__ import annotations

import torch

from gatelm.nn.shapes import Float, Tensor


class Buffer:
    """Rows of tokens so far, in room for more of them.

    capacity_tokens: room to begin with, where the length is known; beyond it, and without it, room
    grows by a half, so that a text of S tokens is copied a few times, not S times.
    """

    def __init__(self, capacity_tokens: int | None = None):
        self._capacity = capacity_tokens or 0
        self._room = torch.empty(0)
        self._length = 0

    @property
    def tokens(self) -> Float[Tensor, "B S *rest"]:
        """What was appended so far; a view, valid until rows are reordered."""
        return self._room[:, : self._length]

    def append(self, new: Float[Tensor, "B T *rest"]) -> Float[Tensor, "B S *rest"]:
        """Add tokens; returns all of them.

        Where gradients are wanted all is copied, since the backward pass needs what it saw.
        """
        length = self._length + new.shape[1]
        needs_grad = new.requires_grad or (self._length > 0 and self._room.requires_grad)
        if torch.is_grad_enabled() and needs_grad:
            self._room = torch.cat((self.tokens, new), dim=1) if self._length else new
        else:
            if not self._length or length > self._room.shape[1]:
                self._grow(new, length)
            self._room[:, self._length : length] = new
        self._length = length
        return self.tokens

    def _grow(self, like: Float[Tensor, "B T *rest"], length: int) -> None:
        old = self.tokens if self._length else None
        room = max(length, self._capacity, self._room.shape[1] * 3 // 2 if self._length else 0)
        self._room = like.new_empty(like.shape[0], room, *like.shape[2:])
        if old is not None:
            self._room[:, : self._length] = old
