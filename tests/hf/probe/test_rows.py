import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gatelm.hf.probe.rows import DocumentRows

DOCUMENTS = st.lists(
    st.lists(st.tuples(st.integers(-1, 2), st.integers(1, 4)), min_size=1, max_size=5),
    min_size=1,
    max_size=3,
)
"""Runs of (document id, length) for each row."""


def laid_out(runs):
    rows = [[i for i, length in row for _ in range(length)] for row in runs]
    width = max(map(len, rows))
    return torch.tensor([row + [-1] * (width - len(row)) for row in rows])


def documents_of(documents):
    """(row, start, stop) of every run of one id, padding left out."""
    found = []
    for b, row in enumerate(documents.tolist()):
        start = 0
        for t in range(1, len(row) + 1):
            if t == len(row) or row[t] != row[start]:
                if row[start] != -1:
                    found.append((b, start, t))
                start = t
    return found


@settings(deadline=None)
@given(DOCUMENTS)
def test_each_document_is_a_row_and_comes_back(runs):
    documents = laid_out(runs)
    parts = documents_of(documents)
    tokens = torch.arange(1, documents.numel() + 1).view_as(documents)
    if not parts:
        return
    rows = DocumentRows(tokens, documents)
    inside = rows.inward(tokens)
    assert inside.shape == (len(parts), max(stop - start for _, start, stop in parts))
    assert rows.row_length == inside.shape[1]
    for row, (b, start, stop) in zip(inside, parts, strict=True):
        assert torch.equal(row[: stop - start], tokens[b, start:stop])
        assert row[stop - start :].eq(0).all()
    assert torch.equal(rows.outward(inside), tokens.masked_fill(documents == -1, 0))
    wide = torch.randn(*tokens.shape, 2, 3)
    kept = wide * (documents != -1)[..., None, None]
    assert torch.equal(rows.outward(rows.inward(wide)), kept)


@settings(deadline=None)
@given(DOCUMENTS)
def test_weights_come_back_to_their_documents(runs):
    documents = laid_out(runs)
    parts = documents_of(documents)
    if not parts:
        return
    rows = DocumentRows(documents, documents)
    length = rows.row_length
    weights = torch.rand(len(parts), 2, length, length) + 1.0
    outside = rows.outward_weights(weights)
    expected = torch.zeros(len(documents), 2, documents.shape[1], documents.shape[1])
    for row, (b, start, stop) in zip(weights, parts, strict=True):
        size = stop - start
        expected[b, :, start:stop, start:stop] = row[:, :size, :size]
    assert torch.equal(outside, expected)


def test_plain_batches_are_not_copied():
    tokens = torch.arange(12).view(2, 6)
    for documents in (None, torch.zeros_like(tokens), torch.tensor([[4] * 6, [2] * 6])):
        rows = DocumentRows(tokens, documents)
        assert rows.inward(tokens) is tokens
        assert rows.outward(tokens) is tokens
        assert rows.row_length == 6
