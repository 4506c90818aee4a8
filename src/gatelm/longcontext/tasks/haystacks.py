"""Haystacks: endless sentences in which needles are hidden."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count, cycle
from random import Random

from gatelm.longcontext.tasks.base import Ids, Pieces
from gatelm.longcontext.tasks.words import NOISE

Haystack = Callable[[Pieces], Iterator[Ids]]

_SENTENCE = re.compile(r"\S.*?[.!?](?=\s)|\S.*", re.DOTALL)


def noise(pieces: Pieces) -> Iterator[Ids]:
    """Yield the same five sentences repeatedly."""
    return cycle([pieces.next(sentence) for sentence in NOISE])


def prose(essays: Sequence[str], start: int) -> Haystack:
    """Yield the sentences of all texts in turn, endlessly, from the beginning of text `start`.

    White space of all kinds becomes single spaces, and characters outside ASCII are left out.
    """

    def sentences(pieces: Pieces) -> Iterator[Ids]:
        for index in count(start):
            text = essays[index % len(essays)].encode("ascii", "ignore").decode()
            for sentence in _SENTENCE.findall(text):
                ids = pieces.next(" " + " ".join(sentence.split()))
                if ids:
                    yield ids

    return sentences


def needles(sentence: Callable[[Random], str], seed: float) -> Haystack:
    """Yield sentences like the needle, with other keys and values."""

    def sentences(pieces: Pieces) -> Iterator[Ids]:
        rng = Random(seed)
        while True:
            yield pieces.next(sentence(rng))

    return sentences
