"""Packing of documents into rows of a fixed length.

The stream holds every document's tokens with BOS in front. Each position's target is the next
token of the same document; at a document's last token it is EOS, so no target crosses into another
document and EOS is never an input. Every token of the stream is an input exactly once, and every
text token and EOS a target exactly once. A BOS that `row_start="bos"` puts in the middle of a
document, and padding, have the target IGNORE.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int64

from gatelm.data.batch import IGNORE

Packing = Literal["concat", "best_fit"]
RowStart = Literal["bos", "stream"]


@runtime_checkable
class Stream(Protocol):
    """A stream of tokens with BOS before every document, such as `shards.TokenStream`."""

    num_tokens: int
    document_starts: Int64[np.ndarray, " d"]
    """Sorted positions of the documents' BOS, the first at 0."""

    def read(self, start: int, stop: int) -> Int64[np.ndarray, " t"]:
        """Read the tokens start..stop; `stop` may lie past the end."""
        ...


@dataclass(frozen=True)
class RowPlan:
    """The pieces of the stream in each row: row r holds the pieces first[r]..first[r+1]."""

    seq_len: int
    first: Int64[np.ndarray, " r"]
    """Index of each row's first piece, and the number of pieces as the last entry."""
    starts: Int64[np.ndarray, " pieces"]
    """Position in the stream at which each piece starts."""
    lengths: Int64[np.ndarray, " pieces"]
    """Number of tokens of each piece, not counting an inserted BOS."""
    inserted: Bool[np.ndarray, " pieces"]
    """Whether a BOS is inserted before each piece."""

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.first) - 1


def plan_rows(stream: Stream, seq_len: int, packing: Packing, row_start: RowStart) -> RowPlan:
    """Plan the rows of a stream, from its document starts alone."""
    starts, num_tokens = stream.document_starts, stream.num_tokens
    if packing == "best_fit":
        return _best_fit(starts, num_tokens, seq_len, row_start)
    if row_start == "stream":
        begin = np.arange(0, num_tokens, seq_len, dtype=np.int64)
        lengths = np.minimum(seq_len, num_tokens - begin)
        return RowPlan(
            seq_len, np.arange(len(begin) + 1), begin, lengths, np.zeros(len(begin), bool)
        )
    return _concat_with_bos(starts.tolist(), num_tokens, seq_len)


def fill_rows(
    stream: Stream, rows: RowPlan, indices: Int64[np.ndarray, " B"], *, bos_id: int, eos_id: int
) -> tuple[Int64[np.ndarray, "B T"], Int64[np.ndarray, "B T"], Int64[np.ndarray, "B T"]]:
    """Return the rows `indices`: tokens, targets and row-local document ids.

    Padding is EOS with document -1.
    """
    shape = (len(indices), rows.seq_len)
    tokens = np.full(shape, eos_id, dtype=np.int64)
    targets = np.full(shape, IGNORE, dtype=np.int64)
    documents = np.full(shape, -1, dtype=np.int64)
    for row, index in enumerate(indices):
        column = 0
        for piece in range(rows.first[index], rows.first[index + 1]):
            start, stop = int(rows.starts[piece]), int(rows.starts[piece] + rows.lengths[piece])
            lead = int(rows.inserted[piece])
            into = slice(column + lead, column + lead + stop - start)
            following = stream.read(start, stop + 1)
            tokens[row, into] = following[: stop - start]
            targets[row, into] = _next_tokens(stream, start, stop, following, eos_id)
            ids = _document_ids(stream, start, stop)
            next_id = documents[row].max() + 1
            documents[row, into] = ids + next_id
            if lead:
                tokens[row, column], documents[row, column] = bos_id, next_id
            column = into.stop
    return tokens, targets, documents


def _next_tokens(
    stream: Stream, start: int, stop: int, following: np.ndarray, eos_id: int
) -> np.ndarray:
    """The target of each position start..stop: the next token, or EOS before a new document."""
    out = np.full(stop - start, eos_id, dtype=np.int64)
    out[: len(following) - 1] = following[1:]
    low, high = np.searchsorted(stream.document_starts, [start + 1, stop + 1])
    out[stream.document_starts[low:high] - start - 1] = eos_id
    return out


def _document_ids(stream: Stream, start: int, stop: int) -> np.ndarray:
    """Document id of each position: 0 for the document at `start`, 1 for the next one, ..."""
    low, high = np.searchsorted(stream.document_starts, [start + 1, stop])
    ids = np.zeros(stop - start, dtype=np.int64)
    ids[stream.document_starts[low:high] - start] = 1
    return np.cumsum(ids)


def _concat_with_bos(starts: list[int], num_tokens: int, seq_len: int) -> RowPlan:
    """Cut the stream into rows that all start with BOS: its own, or an inserted one."""
    begin, inserted = [], []
    position, document = 0, 0
    while position < num_tokens:
        document = bisect_left(starts, position, lo=document)
        at_start = document < len(starts) and starts[document] == position
        begin.append(position)
        inserted.append(not at_start)
        position += seq_len - (not at_start)
    lengths = np.diff(np.array([*begin, num_tokens], dtype=np.int64))
    return RowPlan(
        seq_len,
        np.arange(len(begin) + 1),
        np.array(begin, dtype=np.int64),
        lengths,
        np.array(inserted, dtype=bool),
    )


def _best_fit(starts: np.ndarray, num_tokens: int, seq_len: int, row_start: RowStart) -> RowPlan:
    """Best-fit decreasing: long pieces first, each into the fullest row that still has room."""
    begin, lengths, inserted = _pieces(starts, num_tokens, seq_len, row_start)
    widths = lengths + inserted
    room: list[list[int]] = [[] for _ in range(seq_len + 1)]
    occupied = 0  # bit r: some row has room for exactly r more tokens
    rows: list[list[int]] = []
    for piece in np.argsort(-widths, kind="stable").tolist():
        width = int(widths[piece])
        fitting = occupied >> width
        if fitting:
            left = width + (fitting & -fitting).bit_length() - 1
            row = room[left].pop()
            if not room[left]:
                occupied ^= 1 << left
        else:
            left, row = seq_len, len(rows)
            rows.append([])
        rows[row].append(piece)
        if left > width:
            room[left - width].append(row)
            occupied |= 1 << (left - width)
    order = np.array([piece for row in rows for piece in row], dtype=np.int64)
    first = np.cumsum([0, *(len(row) for row in rows)])
    return RowPlan(seq_len, first, begin[order], lengths[order], inserted[order])


def _pieces(
    starts: np.ndarray, num_tokens: int, seq_len: int, row_start: RowStart
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Documents cut where they exceed a row: starts, lengths, whether a BOS is inserted."""
    sizes = np.diff(np.append(starts, num_tokens))
    step = seq_len - 1 if row_start == "bos" else seq_len  # room beside an inserted BOS
    extra = np.maximum(0, -(-(sizes - seq_len) // step))  # pieces after a document's first
    document = np.repeat(np.arange(len(starts)), extra + 1)
    number = np.arange(len(document)) - np.repeat(np.cumsum(extra + 1) - extra - 1, extra + 1)
    offset = np.where(number > 0, seq_len + (number - 1) * step, 0)
    capacity = np.where(number > 0, step, seq_len)
    lengths = np.minimum(capacity, sizes[document] - offset)
    inserted = (number > 0) & (row_start == "bos")
    return starts[document] + offset, lengths, inserted
