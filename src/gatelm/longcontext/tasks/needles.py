"""Passkey (arXiv 2305.16300) and the needles in a haystack of RULER (arXiv 2404.06654)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Literal

from gatelm.longcontext.tasks.base import DEPTHS, Draft, Insert, RetrievalTask, Setting
from gatelm.longcontext.tasks.haystacks import Haystack, needles, noise, prose
from gatelm.longcontext.tasks.words import compound, identifier, number

RULER = "arXiv 2404.06654"
_SECRETS: dict[str, Callable[[Random], str]] = {"number": number, "code": identifier}


def passkey(rng: Random, setting: Setting) -> Draft:
    """Task of one number from 1 to 50,000, stated twice in one place of the text."""
    key = str(rng.randint(1, 50_000))
    place = rng.uniform(0, 100)
    return Draft(
        intro="A pass key is hidden in this text. Remember it.",
        question=" What is the pass key? The pass key is",
        reply=f"{key}.",
        references=(key,),
        match="number",
        inserts=(
            Insert(
                f" The pass key is {key}. Remember it: {key} is the pass key.",
                place if setting.depth is None else setting.depth,
            ),
        ),
        haystack=noise,
    )


def niah(
    name: str,
    summary: str,
    *,
    haystack: Literal["noise", "prose", "needles"],
    value: Literal["number", "code"] = "number",
    key: Literal["word", "code"] = "word",
    keys: int = 1,
    values: int = 1,
    queries: int = 1,
) -> RetrievalTask:
    """Make a task of needles: `keys` keys with `values` values each, `queries` of them asked.

    haystack: noise, prose, or other needles, whose keys are not among those of the task.
    """

    make_key = compound if key == "word" else identifier

    def draft(rng: Random, setting: Setting) -> Draft:
        names: list[str] = []
        while len(names) < max(keys, queries):
            names += [new for new in (make_key(rng),) if new not in names]
        secrets = {n: [_SECRETS[value](rng) for _ in range(values)] for n in names}
        asked = names[:queries]
        pairs = [(n, secret) for n in names for secret in secrets[n]]
        depths: list[float] = [rng.choice(DEPTHS) for _ in pairs]
        filler = _haystack(names, rng.randrange(1000), rng.random(), setting)
        if setting.depth is not None and task.has_depth:
            depths[0] = setting.depth
        inserts = tuple(
            Insert(_sentence(value, n, secret), depth)
            for (n, secret), depth in zip(pairs, depths, strict=True)
        )
        answers = [secret for n in asked for secret in secrets[n]]
        whose = _listed(asked)
        many = len(answers) > 1
        return Draft(
            intro=f"Secret {value}s are hidden in this text. Remember them.",
            question=(
                f" What {'are all the secret' if many else 'is the secret'} "
                f"{value}{'s' if many else ''} of {whose}? The secret "
                f"{value}{'s' if many else ''} of {whose} {'are' if many else 'is'}"
            ),
            reply=f"{_listed(answers)}.",
            references=tuple(answers),
            inserts=inserts,
            haystack=filler,
        )

    def _haystack(taken: list[str], text: int, seed: float, setting: Setting) -> Haystack:
        if haystack == "noise":
            return noise
        if haystack == "prose":
            return prose(setting.essays, text % len(setting.essays))

        def other(rng: Random) -> str:
            while (name := make_key(rng)) in taken:
                pass
            return _sentence(value, name, _SECRETS[value](rng))

        return needles(other, seed)

    single = queries == 1 and values == 1
    task = RetrievalTask(
        name, summary, RULER, draft, has_depth=single, needs_essays=haystack == "prose"
    )
    return task


def _sentence(value: str, key: str, secret: str) -> str:
    return f" The secret {value} of {key} is {secret}."


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
