"""Perplexity of a text without end in a cache of fixed size (arXiv 2309.17453).

The cache keeps the first F tokens and the last W. Keys are kept before their rotation and turned by
their place *in the cache*, so that no position exceeds F + W - 1 however long the text. A model
that parks attention on its first token needs that token in the cache; one without a sink does not.

Nothing is computed again when the window moves: keys and values stay what they were when their
token came in, and so carry what their token saw. That is eviction. `recompute_losses` is the other
thing often called a sliding window: each window is run from its start, without the tokens before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gatelm.analysis.loss import perplexity_of, target_losses
from gatelm.analysis.probe.handover import Handover
from gatelm.analysis.probe.protocol import Probe
from gatelm.analysis.probe.rotation import find_rotations
from gatelm.inference.window_cache import WindowCache
from gatelm.nn.shapes import Float, Int, Tensor

CHUNK_TOKENS = 256
"""Number of queries that go through the model at a time. It does not change results."""

Progress = Callable[[str, int, int], None]
"""Called with what is measured, the tokens done, and the tokens in all."""


def streaming_losses(
    model: Handover,
    tokens: Int[Tensor, " T"],
    *,
    first_tokens: int,
    window_tokens: int,
    chunk_tokens: int = CHUNK_TOKENS,
    progress: Progress | None = None,
) -> Float[Tensor, " t"]:
    """Compute the loss in nats of each token after the first, given the tokens in the cache.

    A query sees the first `first_tokens` tokens and the last `window_tokens`, itself included. A
    layer with a window of its own sees the keys that are nearer than it *in the cache*. Memory is
    linear in window + chunk, whatever the length of the text.

    Raises:
        ValueError: sizes that are not positive, a text of one token, or a model whose cache cannot
            be moved (see `gatelm.analysis.probe.rotation.find_rotations`).
    """
    if first_tokens < 0 or window_tokens < 1 or chunk_tokens < 1:
        raise ValueError("a cache keeps 0 or more first tokens and a window of 1 or more")
    if len(tokens) < 2:
        raise ValueError(f"the loss needs 2 tokens or more, got {len(tokens)}")
    last_position = min(len(tokens), max(first_tokens + window_tokens, 2)) - 1
    rotations = find_rotations(model, tokens, last_position)
    cache = WindowCache(rotations, first_tokens, window_tokens)
    losses = []
    for start in range(0, len(tokens) - 1, chunk_tokens):
        stop = min(start + chunk_tokens, len(tokens) - 1)
        chunk = tokens[start:stop].to(model.device)[None]
        hidden = model.hidden(chunk, torch.zeros_like(chunk), cache.attend)
        cache.commit(stop - start)
        targets = tokens[start + 1 : stop + 1].to(model.device)
        losses.append(target_losses(model, hidden[0], targets))
        if progress is not None:
            progress(f"{first_tokens} first tokens", stop, len(tokens) - 1)
    return torch.cat(losses)


def recompute_losses(
    probe: Probe,
    tokens: Int[Tensor, " T"],
    *,
    window_tokens: int,
    stride_tokens: int,
    progress: Progress | None = None,
) -> Float[Tensor, " t"]:
    """Compute the loss in nats of each token after the first, each window run from its start.

    Windows begin `stride_tokens` apart, and a window scores what the one before it did not, so
    that a token has at least window - stride tokens before it, except near the text's start.

    Raises:
        ValueError: a stride that is not between 1 and the window, or a text of one token.
    """
    if not 1 <= stride_tokens <= window_tokens:
        raise ValueError("stride_tokens lies between 1 and window_tokens")
    if len(tokens) < 2:
        raise ValueError(f"the loss needs 2 tokens or more, got {len(tokens)}")
    losses, scored, start = [], 0, 0
    while scored < len(tokens) - 1:
        stop = min(start + window_tokens, len(tokens) - 1)
        hidden = probe.observe(tokens[None, start:stop].to(probe.device))
        targets = tokens[scored + 1 : stop + 1].to(probe.device)
        losses.append(target_losses(probe, hidden[0, scored - start :], targets))
        scored, start = stop, start + stride_tokens
        if progress is not None:
            progress("windows from their start", stop, len(tokens) - 1)
    return torch.cat(losses)


@dataclass(frozen=True)
class StreamingRow:
    """Result of one cache: loss in nats per token over the targets common to all caches."""

    first_tokens: int
    loss: float

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that is more than a float holds."""
        return perplexity_of(self.loss)


@dataclass(frozen=True)
class StreamingTable:
    """Comparison of caches of the same window that keep different numbers of first tokens.

    scored_tokens: targets whose query came when every cache was full. reference_loss: of the same
    targets, with each window run from its start.
    """

    num_tokens: int
    window_tokens: int
    scored_tokens: int
    rows: tuple[StreamingRow, ...]
    reference_loss: float | None
    reference_stride_tokens: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain numbers."""
        reference = None
        if self.reference_loss is not None:
            reference = {
                "loss": self.reference_loss,
                "perplexity": perplexity_of(self.reference_loss),
                "stride_tokens": self.reference_stride_tokens,
            }
        return {
            "tokens": self.num_tokens,
            "window_tokens": self.window_tokens,
            "scored_tokens": self.scored_tokens,
            "rows": [
                {
                    "first_tokens": row.first_tokens,
                    "loss": row.loss,
                    "perplexity": row.perplexity if math.isfinite(row.perplexity) else None,
                }
                for row in self.rows
            ],
            "reference": reference,
            "note": NOTE,
        }


NOTE = (
    "The cache keeps the first tokens and a window of the last ones, the query's own included; "
    "positions are counted in the cache, and nothing is computed again when a token leaves. Loss "
    "is the mean over the targets whose query came when every cache compared was full. The "
    "reference runs each window from its start (arXiv 2309.17453)."
)


def compare_first_tokens(
    model: Handover,
    tokens: Int[Tensor, " T"],
    *,
    window_tokens: int,
    counts: Sequence[int] = (0, 1, 2, 4),
    reference: Probe | None = None,
    progress: Progress | None = None,
) -> StreamingTable:
    """Measure the loss of a long text with `counts` first tokens in the cache, on equal targets.

    reference: the same model, to run each window from its start; half a window apart.

    Raises:
        ValueError: no counts, a text that does not fill the caches twice, or see
            `streaming_losses`.
    """
    if not counts:
        raise ValueError("counts: name at least one number of first tokens")
    full = max(counts) + window_tokens
    if len(tokens) < 2 * full:
        raise ValueError(
            f"a text of {len(tokens)} tokens is too short to stream through a cache of {full}: "
            f"give {2 * full} or more, or a smaller window"
        )
    rows = []
    for count in counts:
        losses = streaming_losses(
            model, tokens, first_tokens=count, window_tokens=window_tokens, progress=progress
        )
        rows.append(StreamingRow(count, float(losses[full - 1 :].double().mean())))
    stride = max(1, window_tokens // 2)
    reference_loss = None
    if reference is not None:
        losses = recompute_losses(
            reference,
            tokens,
            window_tokens=window_tokens,
            stride_tokens=stride,
            progress=progress,
        )
        reference_loss = float(losses[full - 1 :].double().mean())
    return StreamingTable(
        num_tokens=len(tokens),
        window_tokens=window_tokens,
        scored_tokens=len(tokens) - full,
        rows=tuple(rows),
        reference_loss=reference_loss,
        reference_stride_tokens=None if reference is None else stride,
    )
