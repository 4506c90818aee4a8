"""Perplexity of a text: every token counted once, weighted the same, also by position."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gatelm.analysis.loss import perplexity_of, target_losses
from gatelm.analysis.probe.protocol import Probe, TextTokenizer
from gatelm.analysis.statistics.maps import evenly
from gatelm.analysis.windows import Bos, FirstToken, first_token
from gatelm.config import ConfigError
from gatelm.nn.attention.masks import PADDING

IGNORE = -100


@dataclass(frozen=True)
class TextRows:
    """A text cut into rows, each at most `seq_len` tokens long, in the order of the text.

    rows: (inputs, targets) as ids of the same length; `IGNORE` where a token is only context.
    """

    rows: list[tuple[list[int], list[int]]]
    first: FirstToken
    seq_len: int
    num_documents: int
    num_bytes: int
    """UTF-8 bytes of all documents, without the characters that the tokenizer drops."""
    num_tokens: int
    """Number of tokens of all documents, without BOS."""
    total_rows: int
    """Number of rows before some were left out to keep to `max_tokens`."""

    @property
    def num_targets(self) -> int:
        """Number of targets in all rows."""
        return sum(target != IGNORE for _, targets in self.rows for target in targets)


def cut_rows(
    texts: Iterable[str],
    tokenizer: TextTokenizer,
    *,
    seq_len: int,
    stride: int | None = None,
    bos: Bos = "auto",
    max_tokens: int | None = None,
    dropped: float = 0.0,
) -> TextRows:
    """Cut documents into rows in which every token is a target once, none across two documents.

    With BOS in front of every row the first token of a document is a target as well; without, it is
    context only, and a later row begins with the token before its first target.

    Args:
        stride: targets a row, but for the first of a document; a smaller one gives each target at
            least `seq_len - stride` tokens of context, if there are any. None: all that fit.
        dropped: the share of the text that the tokenizer drops; its bytes do not count.
        max_tokens: approximate number of targets, from rows spread evenly; None: all.

    Raises:
        ConfigError: for an empty text, or a stride that does not fit.
    """
    rule = first_token(tokenizer, bos)
    room = seq_len if rule.bos_id is None else seq_len - 1
    step = stride or seq_len
    if not 1 <= step <= seq_len:
        raise ConfigError(f"--stride {stride}: must be from 1 to --seq-len {seq_len}")
    rows: list[tuple[list[int], list[int]]] = []
    num_documents = num_bytes = num_tokens = 0
    for text in texts:
        ids = list(tokenizer.encode(text))
        if rule.bos_id is not None and ids[:1] == [rule.bos_id]:
            ids = ids[1:]
        num_documents += 1
        num_bytes, num_tokens = num_bytes + len(text.encode()), num_tokens + len(ids)
        rows += _document_rows(ids, room, step, rule.bos_id)
    if not rows:
        raise ConfigError("--data: no token to predict in this text")
    chosen = rows
    if max_tokens is not None and (wanted := max(1, max_tokens // step)) < len(rows):
        chosen = [rows[i] for i in evenly(len(rows), wanted)]
    first = chosen[0][0][0]
    named = FirstToken(rule.bos_id, rule.reason, first, tokenizer.display([first])[0])
    num_bytes = round(num_bytes * (1 - dropped))
    return TextRows(chosen, named, seq_len, num_documents, num_bytes, num_tokens, len(rows))


def _document_rows(
    ids: Sequence[int], room: int, step: int, bos_id: int | None
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the rows of a document: each holds the context that fits, then its targets."""
    front = [] if bos_id is None else [bos_id]
    begun = done = 0 if front else 1
    while done < len(ids):
        # the first row has no earlier context to leave room for
        stop = min(done + (len(front) + room if done == begun else step), len(ids))
        # the last token of a row is only a target, so the inputs end before it
        begin = max(0, stop - 1 - room)
        inputs = [*front, *ids[begin : stop - 1]]
        context = len(inputs) - (stop - done)
        yield inputs, [IGNORE] * context + list(ids[done:stop])
        done = stop


@dataclass(frozen=True)
class Bin:
    """Bin of targets that are predicted from `first` to `last` tokens (BOS among them)."""

    first: int
    last: int
    tokens: int
    loss: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "first": self.first,
            "last": self.last,
            "tokens": self.tokens,
            "loss": self.loss,
            "perplexity": perplexity_of(self.loss),
        }


@dataclass(frozen=True)
class Perplexity:
    """Perplexity of one model on one text. loss: nats per token, all targets weighing the same."""

    loss: float
    tokens: int
    bits_per_byte: float
    bins: tuple[Bin, ...]

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that is more than a float holds."""
        return perplexity_of(self.loss)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "perplexity": self.perplexity,
            "loss": self.loss,
            "bits_per_byte": self.bits_per_byte,
            "tokens": self.tokens,
            "by_position": [b.to_json() for b in self.bins],
        }


@torch.no_grad()
def perplexity(
    probe: Probe,
    rows: TextRows,
    *,
    batch_size: int = 8,
    report: Callable[[int], None] = lambda _: None,
) -> Perplexity:
    """Measure loss over all targets, and in bins of 1, 2-3, 4-7, ... tokens of context.

    TextRows are padded on the right with documents of their own, so that neither the order nor the
    number of rows in a batch matters but for rounding. Bits per byte: loss / ln 2 / (bytes per
    token of the whole text).

    Args:
        report: called with the rows done so far.

    Raises:
        ConfigError: when a token is outside the model's vocabulary.
    """
    _check_vocabulary(probe, rows)
    longest = max(len(inputs) for inputs, _ in rows.rows)
    sums = torch.zeros(longest + 1, dtype=torch.float64)
    counts = torch.zeros(longest + 1, dtype=torch.int64)
    for start in range(0, len(rows.rows), batch_size):
        part = rows.rows[start : start + batch_size]
        tokens, targets, documents = _padded(part)
        losses, context = _losses(probe, tokens, targets, documents)
        sums.index_add_(0, context, losses.double())
        counts.index_add_(0, context, torch.ones_like(context))
        report(start + len(part))
    total = int(counts.sum())
    loss = float(sums.sum()) / total
    bytes_per_token = rows.num_bytes / rows.num_tokens
    return Perplexity(
        loss, total, loss / math.log(2) / bytes_per_token, position_bins(sums, counts)
    )


def _padded(part: Sequence[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor, Tensor | None]:
    width = max(len(inputs) for inputs, _ in part)
    tokens = torch.zeros(len(part), width, dtype=torch.int64)
    targets = torch.full((len(part), width), IGNORE)
    documents = torch.full((len(part), width), PADDING)
    for row, (inputs, wanted) in enumerate(part):
        tokens[row, : len(inputs)] = torch.tensor(inputs)
        targets[row, : len(inputs)] = torch.tensor(wanted)
        documents[row, : len(inputs)] = 0
    return tokens, targets, None if bool((documents == 0).all()) else documents


def _losses(
    probe: Probe, tokens: Tensor, targets: Tensor, documents: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return each target's loss and the number of tokens before it, on the CPU."""
    device = probe.device
    placed = None if documents is None else documents.to(device)
    hidden = probe.observe(tokens.to(device), placed).flatten(0, 1)
    where = (targets != IGNORE).flatten().nonzero().squeeze(-1)
    context = (torch.arange(tokens.shape[1]) + 1).expand_as(tokens).flatten()[where]
    wanted = targets.flatten()[where].to(device)
    return target_losses(probe, hidden[where.to(device)], wanted), context


def position_bins(sums: Tensor, counts: Tensor) -> tuple[Bin, ...]:
    """Make bins of 1, 2-3, 4-7, ... tokens of context from summed losses and targets by context."""
    bins, first = [], 1
    while first < len(counts):
        last = min(2 * first - 1, len(counts) - 1)
        tokens = int(counts[first : last + 1].sum())
        if tokens:
            bins.append(Bin(first, last, tokens, float(sums[first : last + 1].sum()) / tokens))
        first = last + 1
    return tuple(bins)


def _check_vocabulary(probe: Probe, rows: TextRows) -> None:
    largest = max(max(max(inputs), max(targets)) for inputs, targets in rows.rows)
    if largest >= probe.vocab_size:
        raise ConfigError(
            f"{probe.name}: the tokenizer gives id {largest}, but the model has only "
            f"{probe.vocab_size} tokens: model and tokenizer do not belong together"
        )
