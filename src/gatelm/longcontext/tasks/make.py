"""Make samples: fill a draft to the token, or say how many tokens it needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from gatelm.config import ConfigError
from gatelm.longcontext.tasks.base import Draft, Ids, Pieces, RetrievalTask, Sample, Setting
from gatelm.longcontext.tasks.haystacks import noise

SLACK_TOKENS = 16
"""Number of tokens by which an answer may be longer than the right one."""


def make_sample(
    task: RetrievalTask,
    pieces: Pieces,
    *,
    length_tokens: int,
    index: int,
    depth: float | None = None,
    seed: int = 0,
    essays: Sequence[str] = (),
    answer_tokens: int | None = None,
) -> Sample:
    """Make sample `index` of a task: the same arguments give the same tokens.

    Keys and answers do not depend on length and depth, so that lengths can be compared sample by
    sample. Text and answer together have `length_tokens` tokens, neither more nor less.

    Args:
        depth: percent of the haystack before the needle that is asked for; None: drawn.
        answer_tokens: what the answer may take; None: the right one's tokens and `SLACK_TOKENS`.

    Raises:
        ConfigError: when what must stand in the text does not fit.
    """
    setting = Setting(length_tokens, depth, essays)
    draft = task.draft(Random(f"{task.name}-{seed}-{index}"), setting)
    room = answer_tokens
    if room is None:
        room = len(pieces.next(" " + draft.reply)) + SLACK_TOKENS
    head = (*pieces.front, *pieces.first(draft.intro))
    tail = pieces.next(draft.question)
    budget = length_tokens - len(head) - len(tail) - room
    middle = _fill(draft, pieces, budget) if budget >= 0 else None
    if middle is None:
        raise ConfigError(
            f"{task.name}: {length_tokens:,} tokens are too few for what must stand in the text; "
            f"it needs about {_needed(draft, pieces, len(head) + len(tail) + room):,} with this "
            "tokenizer"
        )
    tokens = (*head, *middle, *tail)
    assert len(tokens) + room == length_tokens
    return Sample(
        task.name,
        length_tokens,
        depth,
        index,
        tokens,
        room,
        draft.references,
        draft.reply,
        draft.match,
    )


def shortest(
    task: RetrievalTask, pieces: Pieces, *, essays: Sequence[str] = (), **settings: int
) -> int:
    """Return the fewest tokens that sample 0 of a task can have; see `make_sample`."""
    low, high = 1, 64
    while not _fits(task, pieces, high, essays, settings):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(task, pieces, middle, essays, settings):
            high = middle
        else:
            low = middle
    return high


def _fits(
    task: RetrievalTask,
    pieces: Pieces,
    length: int,
    essays: Sequence[str],
    settings: dict[str, int],
) -> bool:
    try:
        make_sample(task, pieces, length_tokens=length, index=0, essays=essays, **settings)
    except ConfigError:
        return False
    return True


def _needed(draft: Draft, pieces: Pieces, outside: int) -> int:
    if draft.body is None:
        return outside + sum(len(pieces.next(insert.text)) for insert in draft.inserts)
    inside = 8
    while draft.body(pieces, inside) is None:
        inside += max(1, inside // 16)
    return outside + inside


def _fill(draft: Draft, pieces: Pieces, budget: int) -> Ids | None:
    if draft.body is not None:
        body = draft.body(pieces, budget)
        return None if body is None else (*_cut(noise(pieces), budget - len(body)), *body)
    inserts = [(insert.depth, pieces.next(insert.text)) for insert in draft.inserts]
    left = budget - sum(len(ids) for _, ids in inserts)
    if left < 0:
        return None
    assert draft.haystack is not None
    units, rest = _units(draft.haystack(pieces), left)
    places = sorted((round(depth / 100 * len(units)), i) for i, (depth, _) in enumerate(inserts))
    out: list[int] = list(rest)
    for place, unit in enumerate((*units, ())):
        while places and places[0][0] == place:
            out += inserts[places.pop(0)[1]][1]
        out += unit
    return tuple(out)


def _units(haystack: Iterator[Ids], num_tokens: int) -> tuple[list[Ids], Ids]:
    """Fill the tokens with whole sentences, and the end of one more for the rest."""
    units: list[Ids] = []
    while True:
        unit = next(haystack)
        if len(unit) > num_tokens:
            return units, unit[len(unit) - num_tokens :]
        units.append(unit)
        num_tokens -= len(unit)


def _cut(haystack: Iterator[Ids], num_tokens: int) -> Ids:
    """Return the last `num_tokens` tokens of the shortest sufficient part of a haystack."""
    units, rest = _units(haystack, num_tokens)
    return (*rest, *(i for unit in units for i in unit))
