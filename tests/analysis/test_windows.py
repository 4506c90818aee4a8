import pytest

from gatelm.analysis.windows import IGNORE, cut_windows, first_token
from gatelm.config import ConfigError


class Letters:
    """One id a character; BOS is 0."""

    def __init__(self, bos_id=0, adds_bos=True):
        self.bos_id, self.adds_bos = bos_id, adds_bos

    def encode(self, text):
        return [0 if c == "^" else ord(c) for c in text]

    def display(self, ids):
        return ["^" if i == 0 else chr(i) for i in ids]


def texts(windows):
    return ["".join(Letters().display(row)) for row in windows.tokens.tolist()]


def cut(*documents, tokenizer=None, seq_len=4, samples=10, bos="auto"):
    return cut_windows(documents, tokenizer or Letters(), seq_len=seq_len, samples=samples, bos=bos)


def test_rows_begin_with_bos_and_stay_within_a_document():
    windows = cut("abcdefg", "xyz", "no")
    assert texts(windows) == ["^abc", "^def", "^xyz"]
    assert windows.targets[0].tolist() == [ord(c) for c in "abcd"]
    assert windows.targets[1].tolist() == [ord(c) for c in "defg"]
    assert windows.targets[2].tolist() == [*(ord(c) for c in "xyz"), IGNORE]
    assert windows.num_documents == 2
    assert windows.bytes_per_token == 1.0


def test_bos_is_not_doubled():
    windows = cut("^abcdefg")
    assert texts(windows) == ["^abc", "^def"]
    assert windows.first.id == 0


def test_never_means_never():
    windows = cut("abcdefgh", bos="never")
    assert texts(windows) == ["abcd", "efgh"]
    assert windows.first.text == "a"
    assert windows.first.bos_id is None


@pytest.mark.parametrize(
    ("tokenizer", "bos", "bos_id", "reason"),
    [
        (Letters(), "auto", 0, "puts first by itself"),
        (Letters(adds_bos=False), "auto", None, "does not add it"),
        (Letters(adds_bos=False), "always", 0, "--bos always"),
        (Letters(bos_id=None), "auto", None, "has no BOS token"),
        (Letters(), "never", None, "--bos never"),
    ],
)
def test_the_rule_and_its_reason(tokenizer, bos, bos_id, reason):
    rule = first_token(tokenizer, bos)
    assert rule.bos_id == bos_id
    assert reason in rule.reason


def test_bos_that_does_not_exist_cannot_be_asked_for():
    with pytest.raises(ConfigError, match="has no BOS token; use --bos never"):
        cut("abcdefg", tokenizer=Letters(bos_id=None), bos="always")


def test_samples_are_spread_over_the_text():
    windows = cut("abcdefghijklmnopqrstuvwxyz", samples=3, seq_len=3)
    assert texts(windows) == ["^ab", "^mn", "^yz"]
    assert texts(cut("abcdefghij", samples=1, seq_len=3)) == ["^ab"]
    assert len(cut("abcdef", samples=99, seq_len=3).tokens) == 3


def test_a_text_that_is_too_short_says_what_would_do():
    with pytest.raises(ConfigError, match=r"--seq-len 9: the longest document has 5 .* and 8"):
        cut("abc", "abcde", seq_len=9)
    with pytest.raises(ConfigError, match="longest document has 0 tokens"):
        cut()


def test_batches_hold_about_2048_tokens():
    windows = cut("abcdefgh" * 1000, seq_len=1000, samples=5)
    sizes = [len(batch.tokens) for batch in windows.batches()]
    assert sizes == [2, 2, 1]
    assert windows.num_batches == 3
