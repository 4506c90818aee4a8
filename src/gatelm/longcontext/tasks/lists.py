"""Variable tracking, common words and frequent words of RULER (arXiv 2404.06654)."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from random import Random

from gatelm.longcontext.tasks.base import DEPTHS, Draft, Ids, Insert, Pieces, Setting
from gatelm.longcontext.tasks.haystacks import noise
from gatelm.longcontext.tasks.words import NOISE, compounds, letters

HOPS = 4
COMMON_WORDS, FREQUENT_WORDS = 10, 3
EXAMPLE_FROM_TOKENS = 4096
"""Texts this long begin with a small solved example, and their common words come 30 times, the
others 3 times; shorter ones have no example, and their words come 6 times and once."""
ALPHA = 2.0
"""Exponent of the zeta distribution of frequent words."""
CODED_WORDS, CODED_LETTERS = 2000, 6
DOTS = "......"
"""The most frequent coded word, which does not count."""


def variable_tracking(rng: Random, setting: Setting) -> Draft:
    """Task of one chain: a variable has a value, and four more variables are copies of it."""
    value, names, statements = _chain(rng)
    depths = sorted(rng.choice(DEPTHS) for _ in statements)
    example = ""
    if setting.length_tokens >= EXAMPLE_FROM_TOKENS:
        example = _chain_example(rng)
    return Draft(
        intro=f"{example}Variables get their values in this text. Remember them.",
        question=_chain_question(value),
        reply=f"{', '.join(names)}.",
        references=tuple(names),
        inserts=tuple(Insert(s, d) for s, d in zip(statements, depths, strict=True)),
        haystack=noise,
    )


def _chain(rng: Random) -> tuple[str, list[str], list[str]]:
    value = str(rng.randint(10_000, 99_999))
    names: list[str] = []
    while len(names) <= HOPS:
        names += [new for new in (letters(rng, 5),) if new not in names]
    sources = [value, *(f"VAR {name}" for name in names)]
    statements = [f" VAR {name} = {source}." for name, source in zip(names, sources, strict=False)]
    return value, names, statements


def _chain_question(value: str) -> str:
    return (
        f" Which {HOPS + 1} variables have the value {value}? The variables with the value {value} "
        "are"
    )


def _chain_example(rng: Random) -> str:
    value, names, statements = _chain(rng)
    lines = [sentence for statement in statements for sentence in (*NOISE, statement)]
    text = "Variables get their values in this text. Remember them." + "".join(lines)
    return f"{text}{_chain_question(value)} {', '.join(names)}.\n\n"


def common_words(rng: Random, setting: Setting) -> Draft:
    """Task of the ten words that occur more often than the others in a numbered list."""
    long = setting.length_tokens >= EXAMPLE_FROM_TOKENS
    words = compounds(rng, 10**9)
    example, words = (_words_example(rng, words[:40]), words[40:]) if long else ("", words)
    common, others = words[:COMMON_WORDS], words[COMMON_WORDS:]
    often, seldom = (30, 3) if long else (6, 1)
    shuffle_seed = rng.random()

    def body(pieces: Pieces, budget: int) -> Ids | None:
        chosen, left = [word for word in common for _ in range(often)], budget
        left -= sum(len(_entry(pieces, i, word)) for i, word in enumerate(chosen, 1))
        if left < 0:
            return None
        for word in others:
            new = range(len(chosen) + 1, len(chosen) + 1 + seldom)
            cost = sum(len(_entry(pieces, i, word)) for i in new)
            if cost > left:
                break
            chosen += [word] * seldom
            left -= cost
        Random(shuffle_seed).shuffle(chosen)
        return tuple(t for i, word in enumerate(chosen, 1) for t in _entry(pieces, i, word))

    return Draft(
        intro=f"{example}{_WORDS_INTRO}",
        question=_WORDS_QUESTION,
        reply=f"{', '.join(common)}.",
        references=tuple(common),
        body=body,
    )


_WORDS_INTRO = "Some words of this list come more often than others. Remember them."
_WORDS_QUESTION = (
    f" Which {COMMON_WORDS} words come most often in the list? The {COMMON_WORDS} most common "
    "words are"
)


def _entry(pieces: Pieces, place: int, word: str) -> Ids:
    """Encode a list entry; number and word are separate pieces, so order does not change length."""
    return (*pieces.next(f" {place}."), *pieces.next(f" {word}"))


def _words_example(rng: Random, words: Sequence[str]) -> str:
    common, others = words[:COMMON_WORDS], words[COMMON_WORDS:]
    entries = [w for w in common for _ in range(10)] + [w for w in others for _ in range(3)]
    rng.shuffle(entries)
    listed = "".join(f" {i}. {word}" for i, word in enumerate(entries, 1))
    return f"{_WORDS_INTRO}{listed}{_WORDS_QUESTION} {', '.join(common)}.\n\n"


def frequent_words(rng: Random, setting: Setting) -> Draft:
    """Task of the three most frequent words of a coded text; rank k has frequency k^-2."""
    words = [DOTS]
    while len(words) < CODED_WORDS:
        words.append(letters(rng, CODED_LETTERS, string.ascii_lowercase))
    top = words[1 : 1 + FREQUENT_WORDS]
    shuffle_seed = rng.random()

    def body(pieces: Pieces, budget: int) -> Ids | None:
        sizes = [len(pieces.next(f" {word}")) for word in words]
        num_words = _most_words(sizes, budget)
        counts = _zeta_counts(num_words)
        clear = counts[: FREQUENT_WORDS + 2]
        if len(clear) < FREQUENT_WORDS + 2 or len(set(clear)) < len(clear):
            return None
        chosen = [w for w, n in zip(words, counts, strict=False) for _ in range(n)]
        Random(shuffle_seed).shuffle(chosen)
        return tuple(t for word in chosen for t in pieces.next(f" {word}"))

    return Draft(
        intro="This is a coded text. Remember its most frequent words. Dots do not count.",
        question=(
            f" Which {FREQUENT_WORDS} words are the most frequent, dots left out? The "
            f"{FREQUENT_WORDS} most frequent words are"
        ),
        reply=f"{', '.join(top)}.",
        references=tuple(top),
        body=body,
    )


_ZETA = sum(k**-ALPHA for k in range(1, CODED_WORDS + 1))


def _zeta_counts(num_words: int) -> list[int]:
    """Return the number of occurrences of each rank that occurs."""
    counts = []
    for rank in range(1, CODED_WORDS + 1):
        count = int(num_words * rank**-ALPHA / _ZETA)
        if not count:
            break
        counts.append(count)
    return counts


def _most_words(sizes: Sequence[int], budget: int) -> int:
    """Find the largest number of words that fits; more words never take fewer tokens."""

    def tokens(num_words: int) -> int:
        return sum(n * size for n, size in zip(_zeta_counts(num_words), sizes, strict=False))

    return _largest(tokens, budget)


def _largest(cost: Callable[[int], int], budget: int) -> int:
    low, high = 0, 1
    while cost(high) <= budget:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if cost(middle) <= budget:
            low = middle
        else:
            high = middle
    return low
