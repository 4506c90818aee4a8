"""Retrieval tasks as drafts of texts, which are filled up to an exact number of tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from gatelm.analysis.probe.protocol import TextTokenizer

Ids = tuple[int, ...]
Match = Literal["all", "number"]
"""all: the share of the references that stand in the answer, upper and lower case alike
(arXiv 2404.06654). number: whether the answer's first number is the reference."""

DEPTHS = tuple(round(100 * i / 39) for i in range(40))
"""Default depths of needles in percent (arXiv 2404.06654)."""


class Pieces:
    """Encoder of a text in pieces, such that the ids of the pieces are those of the whole text.

    A piece begins with white space, where tokenizers cut a text. It is encoded behind a letter,
    since some tokenizers put a space in front of whatever they are given.
    """

    def __init__(self, tokenizer: TextTokenizer):
        self.tokenizer = tokenizer
        self._anchor = self.first("a")
        self._known: dict[str, Ids] = {}

    @property
    def front(self) -> Ids:
        """The ids before a text: BOS, for models that expect it."""
        bos = self.tokenizer.bos_id
        return (bos,) if self.tokenizer.adds_bos and bos is not None else ()

    def first(self, text: str) -> Ids:
        """Encode a text's first piece."""
        return tuple(int(i) for i in self.tokenizer.encode(text))

    def next(self, text: str) -> Ids:
        """Encode a piece that begins with white space."""
        if text not in self._known:
            ids, count = self.first("a" + text), len(self._anchor)
            self._known[text] = ids[count:] if ids[:count] == self._anchor else self.first(text)
        return self._known[text]


@dataclass(frozen=True)
class Insert:
    """A sentence that must stand in the text. depth: percent of the haystack before it."""

    text: str
    depth: float


@dataclass(frozen=True)
class Draft:
    """A text before it is filled.

    haystack: sentences without an end, to fill the text with. body: used in place of inserts by
    tasks whose whole text counts: as many ids as fit the given number, or None if that is too few.
    room: what the answer may take; reply: a right answer.
    """

    intro: str
    question: str
    reply: str
    references: tuple[str, ...]
    match: Match = "all"
    inserts: tuple[Insert, ...] = ()
    haystack: Callable[[Pieces], Iterator[Ids]] | None = None
    body: Callable[[Pieces, int], Ids | None] | None = None


@dataclass(frozen=True)
class Setting:
    """Inputs of a task beside its random numbers.

    length_tokens: of text and answer. depth: percent, where a place is asked for. essays: texts
    for the haystacks that are made of prose.
    """

    length_tokens: int
    depth: float | None
    essays: Sequence[str]


@dataclass(frozen=True)
class RetrievalTask:
    """A named task. has_depth: there is one needle, which can be put where it is asked for.
    needs_essays: its haystack is prose. source: where the task is defined."""

    name: str
    summary: str
    source: str
    draft: Callable[[Random, Setting], Draft]
    has_depth: bool = False
    needs_essays: bool = False


@dataclass(frozen=True)
class Sample:
    """One sample; len(tokens) + answer_tokens is exactly the requested length."""

    task: str
    length_tokens: int
    depth: float | None
    index: int
    tokens: Ids
    answer_tokens: int
    references: tuple[str, ...]
    reply: str
    match: Match

    def score(self, answer: str) -> float:
        """Score an answer from 0 to 1; see `Match`."""
        if self.match == "number":
            found = re.search(r"\d+", answer)
            return float(found is not None and found[0] == self.references[0])
        answer = answer.lower()
        return sum(ref.lower() in answer for ref in self.references) / len(self.references)
