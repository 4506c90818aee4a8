"""Ask a model the retrieval tasks: greedy answers, scores by length and depth, effective length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from gatelm.analysis.probe.protocol import TextTokenizer
from gatelm.config import ConfigError
from gatelm.config.base import nearest
from gatelm.inference.prefill import CHUNK_TOKENS, Prefill, continue_greedily
from gatelm.longcontext.tasks import TASKS, Sample, make_sample
from gatelm.longcontext.tasks.base import Pieces

THRESHOLD = 85.6
"""Points from which a length is mastered: those of Llama-2-7B-chat at 4k (arXiv 2404.06654)."""

Answer = Callable[[Sample], str]
Progress = Callable[[str, int, int], None]
"""Called with the task and length, the samples done, and the samples in all."""


class Decoding(TextTokenizer, Protocol):
    """A tokenizer that can also decode ids."""

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids into text."""
        ...

    def unused_ids(self, vocab_size: int) -> Sequence[int]:
        """Return the rows of a vocabulary that have no token."""
        ...


@dataclass(frozen=True)
class RetrievalRequest:
    """Request for retrieval: tasks, lengths, depths and samples.

    depths: number of places for the needle, spread evenly from the text's start to its end.
    samples: at each depth; tasks without a depth get as many in all. answer_tokens: what an answer
    may take; None: the right one's and a few more.
    """

    tasks: tuple[str, ...]
    lengths: tuple[int, ...]
    depths: int = 5
    samples: int = 4
    seed: int = 0
    answer_tokens: int | None = None

    def check(self) -> None:
        """Raises ConfigError for what is no task."""
        for name in self.tasks:
            if name not in TASKS:
                raise ConfigError(f"--tasks {name}: not known; {nearest(name, TASKS)}")

    def places(self) -> list[float]:
        """The depths in percent; a single depth is the middle."""
        if self.depths == 1:
            return [50.0]
        return [round(100 * i / (self.depths - 1), 1) for i in range(self.depths)]

    def samples_of(
        self, task: str, length: int, pieces: Pieces, essays: Sequence[str]
    ) -> Iterator[Sample]:
        """Make all samples of a task at a length."""
        places = self.places() if TASKS[task].has_depth else [None] * self.depths
        for place_index, depth in enumerate(places):
            for number in range(self.samples):
                # the same index at every depth asks the same question in another place
                index = number if depth is not None else place_index * self.samples + number
                yield make_sample(
                    TASKS[task],
                    pieces,
                    length_tokens=length,
                    index=index,
                    depth=depth,
                    seed=self.seed,
                    essays=essays,
                    answer_tokens=self.answer_tokens,
                )


@dataclass(frozen=True)
class Asked:
    """One sample and the model's answer. score: from 0 to 1."""

    task: str
    length_tokens: int
    depth: float | None
    index: int
    answer: str
    references: tuple[str, ...]
    score: float

    @property
    def key(self) -> tuple[str, int, float | None, int]:
        """Key of the question; the same in every run with the same seed and tokenizer."""
        return self.task, self.length_tokens, self.depth, self.index

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


def model_answers(
    model: Prefill,
    tokenizer: Decoding,
    ends: frozenset[int] = frozenset(),
    *,
    chunk_tokens: int = CHUNK_TOKENS,
) -> Answer:
    """Answer greedily, in at most as many tokens as the sample leaves room for."""
    unused = tokenizer.unused_ids(model.vocab_size)

    def answer(sample: Sample) -> str:
        if max(sample.tokens) >= model.vocab_size:
            raise ConfigError(
                f"{model.name}: the tokenizer gives id {max(sample.tokens)}, but the model has "
                f"only {model.vocab_size} tokens: model and tokenizer do not belong together"
            )
        new = continue_greedily(
            model,
            torch.tensor(sample.tokens),
            max_new_tokens=sample.answer_tokens,
            ends=ends,
            unused_ids=unused,
            chunk_tokens=chunk_tokens,
        )
        return tokenizer.decode(new)

    return answer


def ask(
    request: RetrievalRequest,
    pieces: Pieces,
    answer: Answer,
    *,
    essays: Sequence[str] = (),
    known: Mapping[tuple[str, int, float | None, int], Asked] | None = None,
    save: Callable[[Asked], None] = lambda asked: None,
    progress: Progress | None = None,
) -> list[Asked]:
    """Ask all samples of a request, short texts first.

    Args:
        known: answers of an earlier run, which are not asked for again.
        save: called with every new answer as it comes.

    Raises:
        ConfigError: an unknown task, or a length too short for one: before anything is asked.
    """
    request.check()
    _check_lengths(request, pieces, essays)
    known = known or {}
    total = len(request.lengths) * len(request.tasks) * request.depths * request.samples
    done: list[Asked] = []
    for length in sorted(request.lengths):
        for task in request.tasks:
            for sample in request.samples_of(task, length, pieces, essays):
                key = (sample.task, sample.length_tokens, sample.depth, sample.index)
                asked = known.get(key)
                if asked is None:
                    text = answer(sample)
                    score = sample.score(text)
                    asked = Asked(*key, text, sample.references, score)
                    save(asked)
                done.append(asked)
                if progress is not None:
                    progress("texts", len(done), total)
    return done


def _check_lengths(request: RetrievalRequest, pieces: Pieces, essays: Sequence[str]) -> None:
    for length in sorted(request.lengths)[:1]:
        for task in request.tasks:
            for _ in request.samples_of(task, length, pieces, essays):
                pass


def scores(asked: Sequence[Asked]) -> dict[str, dict[int, float]]:
    """Compute the mean score of each task at each length, 0 to 100."""
    return {
        task: {
            length: 100
            * _mean([a.score for a in asked if (a.task, a.length_tokens) == (task, length)])
            for length in sorted({a.length_tokens for a in asked})
        }
        for task in dict.fromkeys(a.task for a in asked)
    }


def by_depth(asked: Sequence[Asked]) -> list[dict[str, Any]]:
    """Compute the mean score (0 to 1) of each task with a depth at each length and depth."""
    cells: dict[tuple[str, int, float], list[float]] = {}
    for a in asked:
        if a.depth is not None:
            cells.setdefault((a.task, a.length_tokens, a.depth), []).append(a.score)
    return [
        {"task": task, "length_tokens": length, "depth": depth, "score": _mean(values)}
        for (task, length, depth), values in cells.items()
    ]


def effective_length(table: Mapping[str, Mapping[int, float]], threshold: float) -> int | None:
    """Return the largest length whose mean over tasks exceeds `threshold` points, or None."""
    averages = averages_by_length(table)
    return max((length for length, mean in averages.items() if mean > threshold), default=None)


def averages_by_length(table: Mapping[str, Mapping[int, float]]) -> dict[int, float]:
    """Compute the mean over tasks at each length."""
    lengths = sorted({length for scores in table.values() for length in scores})
    return {length: _mean([scores[length] for scores in table.values()]) for length in lengths}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
