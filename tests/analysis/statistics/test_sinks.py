import math

import pytest
import torch

from gatelm.analysis.statistics.sinks import SinkTokens, is_delimiter
from gatelm.analysis.statistics.streaming import attention_rows
from gatelm.nn.attention.masks import AttentionMask

NAMES = {0: "<bos>", 1: " word", 2: ".", 3: "\n", 4: "7"}


def add(sinks, at, tokens, documents=None, layer=0, heads=1):
    """Attention of `heads` heads that is all on the keys `at` of each row."""
    size = len(tokens)
    q, k = torch.ones(1, size, heads, 1), torch.zeros(1, size, heads, 1)
    for key in at:
        k[0, key] = 50.0 + key  # a later sink wins over an earlier one
    ids = None if documents is None else torch.tensor([documents])
    rows = attention_rows(q, k, AttentionMask(size, size, ids), scale=1.0)
    sinks.add(layer, rows, torch.tensor([tokens]))


def test_sinks_are_counted_where_they_fall():
    sinks = SinkTokens(0.3)
    tokens = [0] + [1] * 9 + [2] + [1] * 37
    add(sinks, [0, 10], tokens, heads=2)
    add(sinks, [0], tokens, layer=1, heads=2)
    # Layer 0: queries 0-9 look at key 0 (10 of 48: no sink), the others at key 10.
    assert sinks.by_token == {0: 2, 2: 2}
    assert sinks.by_layer == {0: (0.0, 2.0), 1: (2.0, 0.0)}
    assert sinks.shares(NAMES.get) == {"first token": 0.5, "delimiter": 0.5, "other": 0.0}
    assert sinks.shares(None) == {"first token": 0.5, "other": 0.5}
    rates = sinks.rate_by_position()
    assert (rates[0], rates[10], rates[5]) == (0.5, 0.5, 0.0)
    assert math.isnan(rates[40])  # fewer than 16 queries see it
    rows = {(row["token"], row["where"]): row for row in sinks.top(NAMES.get)}
    assert rows.keys() == {("<bos>", "first"), (".", "later")}
    assert rows[".", "later"]["rate"] == pytest.approx(0.5)
    assert rows["<bos>", "first"]["share"] == pytest.approx(0.5)


def test_a_document_has_its_own_first_token_and_padding_none():
    sinks = SinkTokens(0.3)
    tokens = [9] * 4 + [0] + [1] * 29 + [3] + [1] * 29
    documents = [-1] * 4 + [0] * 30 + [1] * 30
    add(sinks, [0, 4, 34], tokens, documents)
    assert sinks.by_token == {0: 1, 3: 1}
    assert sinks.first_by_token == {0: 1, 3: 1}
    assert sinks.shares(NAMES.get)["first token"] == 1.0


def test_short_documents_have_no_sink():
    sinks = SinkTokens(0.3)
    add(sinks, [0], [0] + [1] * 14)
    assert sinks.total == 0
    assert sinks.shares(NAMES.get) == {}
    assert sinks.top(NAMES.get) == []


def test_longer_batches_extend_the_positions():
    sinks = SinkTokens(0.3)
    add(sinks, [0], [0] + [1] * 19)
    add(sinks, [0], [0] + [1] * 39)
    assert len(sinks.rate_by_position()) == 40
    assert sinks.rate_by_position()[0] == 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [(".", True), (" ,", True), ("\n", True), ("a.", False), (" 7", False), ("é", False)],
)
def test_delimiters_have_no_letter_and_no_digit(text, expected):
    assert is_delimiter(text) is expected
