"""Prefill: a model reads a long text in chunks, in memory linear in the length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from gatelm.analysis.loss import target_losses
from gatelm.analysis.probe.evaluation import evaluation
from gatelm.analysis.probe.taps import decoder
from gatelm.nn.cache import KVCache
from gatelm.nn.shapes import Float, Int, Tensor

CHUNK_TOKENS = 1024
"""Number of tokens that go through the model at a time. It does not change results."""


@runtime_checkable
class Prefill(Protocol):
    """A causal language model that reads one text, a chunk at a time."""

    @property
    def name(self) -> str:
        """Name of the model."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of rows of the vocabulary."""
        ...

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        ...

    @property
    def length_dependent(self) -> bool:
        """Whether positions depend on how long the text is so far (dynamic NTK, LongRoPE).

        Then chunks do not give what one forward of the whole text gives.
        """
        ...

    def begin(self, num_tokens: int) -> Any:
        """Return an empty state with room for a text of `num_tokens` tokens."""
        ...

    def extend(self, state: Any, tokens: Int[Tensor, "1 T"]) -> Float[Tensor, "1 T D"]:
        """Read the next tokens and return their final normed states, without gradient."""
        ...

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return the logits of some states."""
        ...


class DecoderPrefill:
    """Prefill of a decoder of this package."""

    def __init__(self, model: nn.Module, name: str = "the model"):
        self.name = name
        self._model = decoder(model)
        self.vocab_size: int = self._model.cfg.vocab_size
        ropes = [getattr(layer.mixer, "rope", None) for layer in self._model.cfg.layers()]
        self.length_dependent = any(rope is not None and rope.length_dependent for rope in ropes)

    @property
    def device(self) -> torch.device:
        """Device of the decoder."""
        return next(self._model.parameters()).device

    def begin(self, num_tokens: int) -> KVCache:
        """Return an empty cache with room for the text."""
        return KVCache(capacity_tokens=num_tokens)

    def extend(self, state: KVCache, tokens: Int[Tensor, "1 T"]) -> Float[Tensor, "1 T D"]:
        """See `Prefill.extend`."""
        with evaluation(self._model):
            return self._model.hidden(tokens.to(self.device), cache=state)

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return the logits of some states."""
        with torch.no_grad():
            return self._model.logits(hidden)


@torch.no_grad()
def token_losses(
    model: Prefill,
    tokens: Int[Tensor, " T"],
    *,
    chunk_tokens: int = CHUNK_TOKENS,
    report: Callable[[int], None] = lambda done: None,
) -> Float[Tensor, " t"]:
    """Compute the loss in nats of each token after the first, given all before it; on the CPU.

    A model whose positions move with the length reads the text at once, the others in chunks.
    Besides keys and values, memory is a chunk's.

    Args:
        report: called with the tokens that have been predicted so far.

    Raises:
        ValueError: for fewer than 2 tokens, or chunks without any.
    """
    if len(tokens) < 2:
        raise ValueError(f"the loss needs 2 tokens or more, got {len(tokens)}")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens {chunk_tokens}: must be 1 or more")
    last = len(tokens) - 1
    step = last if model.length_dependent else chunk_tokens
    state, losses = model.begin(last), []
    for start in range(0, last, step):
        stop = min(start + step, last)
        hidden = model.extend(state, tokens[None, start:stop])[0]
        targets = tokens[start + 1 : stop + 1].to(hidden.device)
        losses.append(target_losses(model, hidden, targets))
        report(stop)
    return torch.cat(losses)


@torch.no_grad()
def continue_greedily(
    model: Prefill,
    tokens: Int[Tensor, " T"],
    *,
    max_new_tokens: int,
    ends: frozenset[int] = frozenset(),
    unused_ids: Sequence[int] = (),
    chunk_tokens: int = CHUNK_TOKENS,
    report: Callable[[int], None] = lambda done: None,
) -> list[int]:
    """Append the likeliest next token repeatedly, up to the maximum or one of `ends` (left out).

    Args:
        unused_ids: rows of the vocabulary that are never chosen, as they have no token.
        report: called with the prompt's tokens that have been read so far.

    Raises:
        ValueError: for an empty prompt.
    """
    if not len(tokens):
        raise ValueError("the prompt is empty")
    step = len(tokens) if model.length_dependent else chunk_tokens
    state = model.begin(len(tokens) + max_new_tokens)
    last = torch.empty(0)
    for start in range(0, len(tokens), step):
        last = model.extend(state, tokens[None, start : start + step])[:, -1]
        report(min(start + step, len(tokens)))
    new: list[int] = []
    while len(new) < max_new_tokens:
        logits = model.logits(last)
        logits[..., list(unused_ids)] = float("-inf")
        token = int(logits.argmax(dim=-1))
        if token in ends:
            break
        new.append(token)
        if len(new) < max_new_tokens:
            last = model.extend(state, torch.tensor([[token]]))[:, -1]
    return new
