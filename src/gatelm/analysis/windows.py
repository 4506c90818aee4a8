"""Rows of equal length cut from one text for every model, with one rule for the first token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor as AnyTensor

from gatelm.analysis.probe.protocol import TextTokenizer
from gatelm.analysis.statistics.maps import evenly
from gatelm.config.base import ConfigError

Bos = Literal["auto", "always", "never"]

CANDIDATES = 8
"""Factor on the number of wanted windows: windows are chosen among this many candidates."""

TOKENS_PER_BATCH = 2048

IGNORE = -100


@dataclass(frozen=True)
class FirstToken:
    """The token that every row begins with, and the reason."""

    bos_id: int | None
    """Id of the token; None if the row begins with text."""
    reason: str
    id: int | None = None
    text: str = ""
    """Text of the first row's first token."""


@dataclass(frozen=True)
class Windows:
    """Rows (N, seq_len) with the token after each; `batches` yields them."""

    tokens: AnyTensor
    targets: AnyTensor
    first: FirstToken
    num_documents: int
    bytes_per_token: float

    def batches(self) -> Iterator[WindowBatch]:
        """Yield the rows in batches of about `TOKENS_PER_BATCH` tokens."""
        rows = max(1, TOKENS_PER_BATCH // self.tokens.shape[1])
        for start in range(0, len(self.tokens), rows):
            cut = slice(start, start + rows)
            yield WindowBatch(self.tokens[cut], self.targets[cut])

    @property
    def num_batches(self) -> int:
        """Number of batches that `batches` yields."""
        rows = max(1, TOKENS_PER_BATCH // self.tokens.shape[1])
        return -(-len(self.tokens) // rows)


@dataclass(frozen=True)
class WindowBatch:
    """Rows that are one document each."""

    tokens: AnyTensor
    targets: AnyTensor
    documents: AnyTensor | None = None
    marks: Mapping[str, AnyTensor] = field(default_factory=dict)


def first_token(tokenizer: TextTokenizer, bos: Bos) -> FirstToken:
    """Decide which token opens the rows of this tokenizer.

    Raises:
        ConfigError: BOS is asked for, and there is none.
    """
    bos_id = tokenizer.bos_id
    if bos == "always":
        if bos_id is None:
            raise ConfigError("--bos always: the tokenizer has no BOS token; use --bos never")
        return FirstToken(bos_id, "BOS, as --bos always asks")
    if bos == "never":
        return FirstToken(None, "text, as --bos never asks")
    if bos_id is None:
        return FirstToken(None, "text: the tokenizer has no BOS token")
    if tokenizer.adds_bos:
        return FirstToken(bos_id, "BOS, which the tokenizer puts first by itself")
    return FirstToken(
        None, "text: the tokenizer has a BOS token and does not add it (--bos always does)"
    )


def cut_windows(
    texts: Iterable[str],
    tokenizer: TextTokenizer,
    *,
    seq_len: int,
    samples: int,
    bos: Bos = "auto",
) -> Windows:
    """Cut `samples` rows of `seq_len` tokens, spread evenly over the texts, each from one text.

    One sample is the first row. A row is a stretch of one text; BOS, where the rule asks for it,
    stands in front of every row and is not doubled where the text itself spells it out. The last
    row of a text may lack its last target. Reading ends when there are `CANDIDATES` times as many
    rows as wanted.

    Raises:
        ConfigError: no text is long enough, or the rule cannot be kept.
    """
    rule = first_token(tokenizer, bos)
    rows: list[tuple[list[int], list[int]]] = []
    longest = num_bytes = num_tokens = num_documents = 0
    for text in texts:
        ids = list(tokenizer.encode(text))
        longest = max(longest, len(ids))
        num_bytes, num_tokens = num_bytes + len(text.encode()), num_tokens + len(ids)
        before = len(rows)
        rows += _rows(ids, seq_len, rule.bos_id)
        num_documents += len(rows) > before
        if len(rows) >= CANDIDATES * samples:
            break
    if not rows:
        need = seq_len if rule.bos_id is None else seq_len - 1
        raise ConfigError(
            f"--seq-len {seq_len}: the longest document has {longest} tokens and {need} are "
            f"needed; use --seq-len {max(longest, 2)} or a longer --text"
        )
    chosen = rows[:1] if samples == 1 else [rows[i] for i in evenly(len(rows), samples)]
    tokens = torch.tensor([row for row, _ in chosen])
    first = int(tokens[0, 0])
    return Windows(
        tokens,
        torch.tensor([targets for _, targets in chosen]),
        FirstToken(rule.bos_id, rule.reason, first, tokenizer.display([first])[0]),
        num_documents,
        num_bytes / num_tokens,
    )


def _rows(
    ids: Sequence[int], seq_len: int, bos_id: int | None
) -> Iterator[tuple[list[int], list[int]]]:
    start = 0
    while start < len(ids):
        has_bos = bos_id is None or ids[start] == bos_id
        front = [] if has_bos else [bos_id]
        stop = start + seq_len - len(front)
        if stop > len(ids):
            return
        row = [*front, *ids[start:stop]]
        after = ids[stop] if stop < len(ids) else IGNORE
        yield row, [*row[1:], after]
        start = stop
