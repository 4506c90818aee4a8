"""Rows against a naive twin that walks the documents token by token."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatelm.data.batch import IGNORE
from gatelm.data.packing import fill_rows, plan_rows

BOS, EOS = 1000, 1001
POLICIES = [(p, r) for p in ("concat", "best_fit") for r in ("bos", "stream")]
documents_strategy = st.lists(st.integers(1, 40), min_size=1, max_size=25)


class ListStream:
    """Documents of the given lengths; every text token is a different number."""

    def __init__(self, lengths):
        self.documents, count = [], 0
        for length in lengths:
            self.documents.append(list(range(count, count + length)))
            count += length
        flat = [[BOS, *document] for document in self.documents]
        self.tokens = np.array([token for document in flat for token in document])
        self.num_tokens = len(self.tokens)
        self.document_starts = np.cumsum([0, *(len(document) for document in flat[:-1])])

    def read(self, start, stop):
        return self.tokens[start:stop].astype(np.int64)


def pack(lengths, seq_len, packing, row_start):
    stream = ListStream(lengths)
    rows = plan_rows(stream, seq_len, packing, row_start)
    filled = fill_rows(stream, rows, np.arange(len(rows)), bos_id=BOS, eos_id=EOS)
    return stream, rows, *filled


def naive_concat(documents, seq_len, row_start):
    """(token, target, document) triples, row by row."""
    rows, row = [], []
    for number, document in enumerate(documents):
        inputs, targets = [BOS, *document], [*document, EOS]
        for index, (token, target) in enumerate(zip(inputs, targets, strict=True)):
            if len(row) == seq_len:
                rows, row = [*rows, row], []
            if not row and index > 0 and row_start == "bos":
                row.append((BOS, IGNORE, number))
            row.append((token, target, number))
    rows.append(row + [(EOS, IGNORE, None)] * (seq_len - len(row)))
    return rows


@settings(max_examples=80, deadline=None)
@given(documents_strategy, st.integers(2, 16), st.sampled_from(["bos", "stream"]))
def test_concat_equals_the_naive_twin(lengths, seq_len, row_start):
    stream, rows, tokens, targets, documents = pack(lengths, seq_len, "concat", row_start)
    expected = naive_concat(stream.documents, seq_len, row_start)
    assert len(rows) == len(expected)
    for r, row in enumerate(expected):
        assert tokens[r].tolist() == [token for token, _, _ in row]
        assert targets[r].tolist() == [target for _, target, _ in row]
        base = row[0][2]
        ids = [-1 if number is None else number - base for _, _, number in row]
        assert documents[r].tolist() == ids


@pytest.mark.parametrize(("packing", "row_start"), POLICIES)
@settings(max_examples=60, deadline=None)
@given(lengths=documents_strategy, seq_len=st.integers(2, 16))
def test_every_token_is_read_once_and_predicted_once(packing, row_start, lengths, seq_len):
    stream, _, tokens, targets, documents = pack(lengths, seq_len, packing, row_start)
    read = tokens[(documents >= 0) & (tokens != BOS)]
    assert sorted(read.tolist()) == list(range(sum(lengths)))
    predicted = targets[targets != IGNORE]
    expected = sorted([*range(sum(lengths)), *[EOS] * len(lengths)])
    assert sorted(predicted.tolist()) == expected
    assert (targets[documents < 0] == IGNORE).all()
    own_bos = (tokens == BOS) & (targets != IGNORE)
    assert own_bos.sum() == len(stream.documents)


@pytest.mark.parametrize(("packing", "row_start"), POLICIES)
@settings(max_examples=60, deadline=None)
@given(lengths=documents_strategy, seq_len=st.integers(2, 16))
def test_no_target_comes_from_another_document(packing, row_start, lengths, seq_len):
    stream, _, tokens, targets, _ = pack(lengths, seq_len, packing, row_start)
    home = {token: n for n, document in enumerate(stream.documents) for token in document}
    last = {document[-1] for document in stream.documents}
    first = {document[0] for document in stream.documents}
    for token, target in zip(tokens.ravel().tolist(), targets.ravel().tolist(), strict=True):
        if target == IGNORE:
            continue
        if target == EOS:
            assert token in last
        elif token == BOS:
            assert target in first
        else:
            assert target == token + 1
            assert home[token] == home[target]


@pytest.mark.parametrize(("packing", "row_start"), POLICIES)
@settings(max_examples=60, deadline=None)
@given(lengths=documents_strategy, seq_len=st.integers(2, 16))
def test_document_ids_follow_the_documents(packing, row_start, lengths, seq_len):
    stream, _, tokens, _, documents = pack(lengths, seq_len, packing, row_start)
    home = {token: n for n, document in enumerate(stream.documents) for token in document}
    for row, ids in zip(tokens.tolist(), documents.tolist(), strict=True):
        seen = [i for i in ids if i >= 0]
        assert seen == sorted(seen)
        assert set(seen) == set(range(max(seen) + 1))
        assert ids == seen + [-1] * (len(ids) - len(seen))
        owners: dict[int, set[int]] = {}
        for token, document in zip(row, ids, strict=True):
            if document >= 0 and token != BOS:
                owners.setdefault(document, set()).add(home[token])
        assert all(len(owner) == 1 for owner in owners.values())


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
@settings(max_examples=60, deadline=None)
@given(lengths=documents_strategy, seq_len=st.integers(2, 16))
def test_every_row_starts_with_bos(packing, lengths, seq_len):
    _, _, tokens, _, _ = pack(lengths, seq_len, packing, "bos")
    assert (tokens[:, 0] == BOS).all()


@settings(max_examples=60, deadline=None)
@given(lengths=documents_strategy, seq_len=st.integers(2, 16))
def test_best_fit_cuts_only_documents_longer_than_a_row(lengths, seq_len):
    stream, rows, *_ = pack(lengths, seq_len, "best_fit", "bos")
    sizes = np.diff([*stream.document_starts, stream.num_tokens])
    for start, size in zip(stream.document_starts, sizes, strict=True):
        if size <= seq_len:
            assert rows.lengths[rows.starts == start].tolist() == [size]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [([5, 3, 2, 1], [[6, 2], [4, 3]]), ([1, 4, 5], [[6, 2], [5]]), ([9], [[8], [2]])],
)
def test_best_fit_chooses_the_fullest_row_with_room(lengths, expected):
    """Piece lengths of each row of 8, BOS counted where it is the document's own."""
    _, rows, *_ = pack(lengths, 8, "best_fit", "bos")
    assert [rows.lengths[a:b].tolist() for a, b in pairwise(rows.first)] == expected


def test_concat_leaves_padding_in_the_last_row_only():
    _, _, _, _, documents = pack([30, 3, 9], 8, "concat", "bos")
    assert (documents[:-1] >= 0).all()
    assert (documents[-1] == -1).any()
