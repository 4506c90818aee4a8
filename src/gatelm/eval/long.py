"""Loss of long documents: by length, by position, and in sliding windows.

The same documents serve every length, so that a difference between lengths is not one between
texts. Definitions: `truncated` and `sliding_windows` are those of the evaluations published with
arXiv 2309.00071.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gatelm.analysis.loss import perplexity_of
from gatelm.analysis.probe.protocol import TextTokenizer
from gatelm.analysis.windows import Bos, FirstToken, first_token
from gatelm.config import ConfigError
from gatelm.eval.perplexity import Bin, position_bins
from gatelm.inference.prefill import CHUNK_TOKENS, Prefill, token_losses
from gatelm.nn.shapes import Float, Int, Tensor

Progress = Callable[[str, int, int], None]
"""Called with what is measured, the tokens done, and the tokens in all."""


@dataclass(frozen=True)
class LongDocuments:
    """The first `num_tokens` tokens (BOS among them) of documents at least that long."""

    tokens: Int[Tensor, "n T"]
    first: FirstToken
    bytes_per_token: float
    """UTF-8 bytes per token of these documents as a whole."""
    available: int
    """Number of documents that are long enough, before some were left out."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens of each document."""
        return self.tokens.shape[1]


def long_documents(
    texts: Iterable[str],
    tokenizer: TextTokenizer,
    *,
    num_tokens: int,
    max_documents: int | None = None,
    bos: Bos = "auto",
) -> LongDocuments:
    """Select documents of at least `num_tokens` tokens, in text order, cut to that length.

    Raises:
        ConfigError: no document is so long, or BOS is asked for and there is none.
    """
    rule = first_token(tokenizer, bos)
    front = [] if rule.bos_id is None else [rule.bos_id]
    rows: list[list[int]] = []
    available = longest = num_bytes = tokens_read = 0
    for text in texts:
        size = len(text.encode())
        if size < num_tokens - len(front) and size <= longest:
            continue  # a token is at least a byte
        ids = list(tokenizer.encode(text))
        ids = ids[1:] if front and ids[:1] == front else ids
        longest = max(longest, len(ids) + len(front))
        if len(ids) + len(front) < num_tokens:
            continue
        available += 1
        if max_documents is None or len(rows) < max_documents:
            rows.append([*front, *ids][:num_tokens])
            num_bytes, tokens_read = num_bytes + size, tokens_read + len(ids)
    if not rows:
        raise ConfigError(
            f"--lengths: the longest document has {longest:,} tokens and {num_tokens:,} are "
            "needed; use a shorter length or longer --data"
        )
    first = rows[0][0]
    named = FirstToken(rule.bos_id, rule.reason, first, tokenizer.display([first])[0])
    return LongDocuments(torch.tensor(rows), named, num_bytes / tokens_read, available)


@dataclass(frozen=True)
class LengthLoss:
    """Truncated loss: the first `length_tokens` tokens of every document, each token but the first
    a target, all targets weighing the same (the documents do too, being equally long)."""

    length_tokens: int
    loss: float
    bits_per_byte: float
    targets: int
    bins: tuple[Bin, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "length_tokens": self.length_tokens,
            "loss": self.loss,
            "perplexity": perplexity_of(self.loss),
            "bits_per_byte": self.bits_per_byte,
            "tokens": self.targets,
            "by_position": [b.to_json() for b in self.bins],
        }


def by_length(
    model: Prefill,
    documents: LongDocuments,
    lengths: Sequence[int],
    *,
    chunk_tokens: int = CHUNK_TOKENS,
    progress: Progress | None = None,
) -> tuple[LengthLoss, ...]:
    """Measure loss over the first L tokens of every document for each length L, and by position.

    One forward over the longest length gives all of them, since a token's loss does not depend on
    what follows it; a model whose positions move with the length is run at each.

    Raises:
        ConfigError: a length beyond the documents' or below 2, or ids outside the vocabulary.
    """
    lengths = sorted(set(lengths))
    _check(model, documents, lengths)
    if model.length_dependent:
        losses = {
            length: _document_losses(model, documents, length, chunk_tokens, progress)
            for length in lengths
        }
    else:
        whole = _document_losses(model, documents, lengths[-1], chunk_tokens, progress)
        losses = {length: whole[:, : length - 1] for length in lengths}
    return tuple(
        _length_loss(length, found, documents.bytes_per_token) for length, found in losses.items()
    )


def _document_losses(
    model: Prefill,
    documents: LongDocuments,
    length: int,
    chunk_tokens: int,
    progress: Progress | None,
) -> Float[Tensor, "n t"]:
    rows = []
    for index, tokens in enumerate(documents.tokens):
        done = index * (length - 1)

        def report(now: int, done: int = done) -> None:
            if progress is not None:
                progress(f"{length:,} tokens", done + now, (length - 1) * len(documents.tokens))

        rows.append(token_losses(model, tokens[:length], chunk_tokens=chunk_tokens, report=report))
    return torch.stack(rows)


def _length_loss(length: int, losses: Float[Tensor, "n t"], bytes_per_token: float) -> LengthLoss:
    sums = torch.cat((torch.zeros(1, dtype=torch.float64), losses.double().sum(dim=0)))
    counts = torch.full((length,), len(losses))
    counts[0] = 0
    mean = float(sums.sum()) / losses.numel()
    bits = mean / math.log(2) / bytes_per_token
    return LengthLoss(length, mean, bits, losses.numel(), position_bins(sums, counts))


@dataclass(frozen=True)
class SlidingLoss:
    """Loss in windows of `window_tokens` tokens whose starts are `stride_tokens` apart.

    loss: every target weighs the same. window_mean_loss: every window's mean weighs the same,
    whatever its number of targets, as the evaluations of arXiv 2309.00071 compute it; the first
    window of a document has more targets than the others.
    """

    window_tokens: int
    stride_tokens: int
    loss: float
    window_mean_loss: float
    bits_per_byte: float
    targets: int
    windows: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "window_tokens": self.window_tokens,
            "stride_tokens": self.stride_tokens,
            "loss": self.loss,
            "perplexity": perplexity_of(self.loss),
            "window_mean_loss": self.window_mean_loss,
            "window_mean_perplexity": perplexity_of(self.window_mean_loss),
            "bits_per_byte": self.bits_per_byte,
            "tokens": self.targets,
            "windows": self.windows,
        }


def sliding_windows(
    model: Prefill,
    documents: LongDocuments,
    *,
    window_tokens: int,
    stride_tokens: int,
    chunk_tokens: int = CHUNK_TOKENS,
    progress: Progress | None = None,
) -> SlidingLoss:
    """Each window of at most `window_tokens` tokens is run from its start and scores the tokens
    that the window before it did not hold; the first scores all but its first token.

    Raises:
        ConfigError: a stride that is not between 1 and the window.
    """
    if not 1 <= stride_tokens <= window_tokens or window_tokens < 2:
        raise ConfigError(
            f"--stride {stride_tokens}: must be from 1 to --window {window_tokens}, which is 2 or "
            "more"
        )
    _check(model, documents, [documents.num_tokens])
    total, targets, means = 0.0, 0, []
    for index, tokens in enumerate(documents.tokens):
        scored = 1  # the first token is no target
        for new in window_losses(model, tokens, window_tokens, stride_tokens, chunk_tokens):
            total, targets = total + float(new.double().sum()), targets + len(new)
            means.append(float(new.double().mean()))
            scored += len(new)
            if progress is not None:
                whole = len(tokens) * len(documents.tokens)
                progress(f"windows of {window_tokens:,}", index * len(tokens) + scored, whole)
    mean = total / targets
    bits = mean / math.log(2) / documents.bytes_per_token
    return SlidingLoss(
        window_tokens, stride_tokens, mean, sum(means) / len(means), bits, targets, len(means)
    )


def window_losses(
    model: Prefill,
    tokens: Int[Tensor, " T"],
    window_tokens: int,
    stride_tokens: int,
    chunk_tokens: int = CHUNK_TOKENS,
) -> Iterator[Float[Tensor, " t"]]:
    """Nats of the tokens that each window adds, each window run from its start; the first adds all
    but the first token."""
    scored = start = 0
    while scored < len(tokens):
        stop = min(start + window_tokens, len(tokens))
        losses = token_losses(model, tokens[start:stop], chunk_tokens=chunk_tokens)
        yield losses[len(losses) - min(stop - scored, len(losses)) :]
        scored, start = stop, start + stride_tokens


def _check(model: Prefill, documents: LongDocuments, lengths: Sequence[int]) -> None:
    if not lengths or lengths[0] < 2 or lengths[-1] > documents.num_tokens:
        raise ConfigError(
            f"--lengths: from 2 to {documents.num_tokens:,} tokens, as the documents are cut"
        )
    largest = int(documents.tokens.max())
    if largest >= model.vocab_size:
        raise ConfigError(
            f"{model.name}: the tokenizer gives id {largest}, but the model has only "
            f"{model.vocab_size} tokens: model and tokenizer do not belong together"
        )
