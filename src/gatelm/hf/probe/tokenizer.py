"""Adapters that give analysis one interface to tokenizers of transformers and of this package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from gatelm.analysis.probe.protocol import TextTokenizer
from gatelm.data.tokenizer import Coverage, Tokenizer, coverage, unused_ids


def coverage_of(tokenizer: TextTokenizer, texts: Iterable[str]) -> Coverage:
    """Count what a model's tokenizer loses of some texts; empty for tokenizers in Python."""
    if isinstance(tokenizer, GatelmTokenizer):
        return tokenizer.inner.coverage(texts)
    backend = getattr(getattr(tokenizer, "inner", None), "backend_tokenizer", None)
    return Coverage() if backend is None else coverage(backend, texts)


def checked_coverage(
    tokenizer: TextTokenizer, texts: Iterable[str], limit: float, where: str
) -> Coverage:
    """Measure `coverage_of`, and warn if anything is lost.

    Raises:
        DataError: when more than `limit` is lost; see `Coverage.check`.
    """
    found = coverage_of(tokenizer, texts)
    found.check(limit, where, "--max-lost")
    return found


class HFTokenizer:
    """A tokenizer of transformers; `adds_bos`: whether it adds BOS by itself."""

    def __init__(self, inner: PreTrainedTokenizerBase):
        self.inner = inner
        bos: Any = inner.bos_token_id
        self.bos_id: int | None = None if bos is None else int(bos)
        ids: Any = inner("a")["input_ids"]
        self.adds_bos = self.bos_id is not None and list(ids)[:1] == [self.bos_id]

    def encode(self, text: str) -> list[int]:
        """Encode a text; special tokens that the text spells out become their ids."""
        ids: Any = self.inner(text, add_special_tokens=False, verbose=False)["input_ids"]
        return list(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids into text, with special tokens written out."""
        return str(self.inner.decode(list(ids)))

    def unused_ids(self, vocab_size: int) -> list[int]:
        """Return the rows of a vocabulary that have no token."""
        return unused_ids(self.inner.get_vocab().values(), vocab_size)

    def display(self, ids: Sequence[int]) -> list[str]:
        """Return a readable string per id; a byte that is no character alone shows as U+FFFD."""
        return [str(self.inner.decode([i])) for i in ids]


class GatelmTokenizer:
    """A tokenizer of this package; models trained here have seen BOS begin every document."""

    def __init__(self, inner: Tokenizer, *, adds_bos: bool = True):
        self.inner, self.adds_bos = inner, adds_bos
        self.bos_id: int | None = inner.bos_id

    def encode(self, text: str) -> list[int]:
        """Encode a text, without BOS."""
        return self.inner.encode(text).tolist()

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids into text, leaving out special tokens."""
        return self.inner.decode(ids)

    def unused_ids(self, vocab_size: int) -> list[int]:
        """Return the rows of a vocabulary that have no token."""
        return self.inner.unused_ids(vocab_size)

    def display(self, ids: Sequence[int]) -> list[str]:
        """Return a readable string per id."""
        return self.inner.display(ids)
