"""Synthetic tasks, sampled afresh at every step: batch(step) is a pure function of (seed, step)."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64

from gatelm.data.batch import IGNORE, Batch
from gatelm.data.config import (
    AssociativeRecallConfig,
    BigramBackcopyConfig,
    SyntheticConfig,
)
from gatelm.data.order import rank_rows
from gatelm.data.tokenizer import Tokenizer

_TASK, _TRAIN, _VALIDATION = 0, 1, 2
VALIDATION_SEQUENCES = 1024
"""Default number of held-out sequences of `validation`."""


def _generator(stream: int, *key: int) -> np.random.Generator:
    """Make a counter-based generator; different streams and keys never share random numbers."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([stream, *key])))


def task_generator(task_seed: int) -> np.random.Generator:
    """Make the generator of the task's own random numbers, the same in every run."""
    return _generator(_TASK, task_seed)


class SyntheticSource:
    """Base of the synthetic tasks, which decides the random numbers of each row."""

    vocab_size: int
    loss_floor: float
    """Expected loss of the best possible predictor, in nats per target."""
    mark_floor: dict[str, float]
    """Expected loss of the best possible predictor at the positions of each mark."""

    def __init__(self, cfg: SyntheticConfig, seed: int) -> None:
        self.cfg, self.seed = cfg, seed
        self.seq_len = cfg.seq_len
        self.fingerprint = f"{cfg.kind}-1-{cfg.content_hash()}"
        self.tokenizer: Tokenizer | None = None
        self.bytes_per_token: float | None = None
        self.sequences_per_epoch: int | None = None

    def sample(self, rng: np.random.Generator, num_sequences: int) -> Int64[np.ndarray, "B S"]:
        """Sample sequences of S = seq_len + 1 tokens; the first ones do not depend on `count`."""
        raise NotImplementedError

    def label(self, sequences: Int64[np.ndarray, "B S"]) -> Batch:
        """Return the targets and marks of sampled sequences."""
        raise NotImplementedError

    def batch(self, step: int, *, batch_size: int, rank: int = 0, world_size: int = 1) -> Batch:
        """Return this rank's rows of the global batch of a step."""
        rows = rank_rows(batch_size, rank, world_size)
        rng = _generator(_TRAIN, self.seed, step)
        return self.make(rng, rows.stop, rows)

    def make(self, rng: np.random.Generator, num_sequences: int, rows: slice) -> Batch:
        """Make some rows of a batch of `num_sequences`."""
        return self.label(self.sample(rng, num_sequences)[rows])

    def validation(self, batch_size: int, max_sequences: int | None = None) -> Iterator[Batch]:
        """Return held-out samples, the same for every seed of a run."""
        remaining = VALIDATION_SEQUENCES if max_sequences is None else max_sequences
        number = 0
        while remaining > 0:
            rng = _generator(_VALIDATION, self.cfg.task_seed, number)
            yield self.make(rng, min(batch_size, remaining), slice(None))
            number, remaining = number + 1, remaining - batch_size


class BigramBackcopySource(SyntheticSource):
    """After a trigger the token before it comes again; otherwise the bigram table decides.

    BOS has the id num_tokens. The first token is uniform over the ordinary tokens, so that a
    trigger always has a token before it. Marks: "trigger" (queries that must copy) and
    "non_trigger" (the others, without position 0).
    """

    cfg: BigramBackcopyConfig

    def __init__(self, cfg: BigramBackcopyConfig, seed: int) -> None:
        super().__init__(cfg, seed)
        self.vocab_size = cfg.num_tokens + 1
        self.bos_id = cfg.num_tokens
        rng = task_generator(cfg.task_seed)
        self.table = rng.dirichlet(np.full(cfg.num_tokens, cfg.dirichlet), size=cfg.num_tokens)
        """(num_tokens, num_tokens): row a is the distribution of the token after a."""
        frequency = stationary_distribution(self.table)
        self.triggers = np.sort(np.argsort(-frequency, kind="stable")[: cfg.num_triggers])
        self._is_trigger = np.isin(np.arange(self.vocab_size), self.triggers)
        self._ordinary = np.flatnonzero(~self._is_trigger[: cfg.num_tokens])
        self._accept, self._alias = alias_tables(self.table)
        self.loss_floor, self.mark_floor = self._floors()

    def sample(self, rng: np.random.Generator, num_sequences: int) -> Int64[np.ndarray, "B S"]:
        """Sample sequences with one draw from an alias table per token, over all rows at once."""
        length, columns = self.cfg.seq_len + 1, self.cfg.num_tokens
        uniform = np.ascontiguousarray(rng.random((num_sequences, length - 1)).T)
        accept, alias = self._accept.ravel(), self._alias.ravel()
        out = np.empty((length, num_sequences), dtype=np.int64)
        out[0] = self.bos_id
        out[1] = self._ordinary[(uniform[0] * len(self._ordinary)).astype(np.int64)]
        scaled = uniform * columns
        column = scaled.astype(np.int64)
        fraction = scaled - column
        for t in range(1, length - 1):
            # triggers are copied over afterwards, so their own table rows are never used
            cell = out[t] * columns + column[t]
            drawn = np.where(fraction[t] < accept[cell], column[t], alias[cell])
            out[t + 1] = np.where(self._is_trigger[out[t]], out[t - 1], drawn)
        return np.ascontiguousarray(out.T)

    def label(self, sequences: Int64[np.ndarray, "B S"]) -> Batch:
        """Return every token as a target, also the token after BOS."""
        tokens = sequences[:, :-1]
        trigger = self._is_trigger[tokens]
        non_trigger = ~trigger
        non_trigger[:, 0] = False
        return Batch(
            torch.from_numpy(np.ascontiguousarray(tokens)),
            torch.from_numpy(np.ascontiguousarray(sequences[:, 1:])),
            marks={
                "trigger": torch.from_numpy(trigger),
                "non_trigger": torch.from_numpy(non_trigger),
            },
        )

    def decode_tokens(self, ids: list[int]) -> list[str]:
        """Return BOS, numbers, and numbers with a star for triggers, for display."""
        return [
            "<bos>" if i == self.bos_id else f"{i}*" if self._is_trigger[i] else str(i) for i in ids
        ]

    def _floors(self) -> tuple[float, dict[str, float]]:
        """Compute exact expected entropies from the distribution of the token at every position.

        `plain[a]` is the probability of the ordinary token a, `waiting[a]` that of a trigger with a
        before it, which the next position turns back into a.
        """
        ordinary = self._ordinary
        table = self.table[ordinary]
        entropy = -np.sum(table * np.log(np.maximum(table, 1e-300)), axis=1)
        to_trigger = table[:, self.triggers].sum(axis=1)
        plain = np.full(len(ordinary), 1 / len(ordinary))
        waiting = np.zeros(len(ordinary))
        nats = weight = 0.0
        for _ in range(1, self.cfg.seq_len):
            nats += float(plain @ entropy)
            weight += float(plain.sum())
            plain, waiting = plain @ table[:, ordinary] + waiting, plain * to_trigger
        total = math.log(len(ordinary)) + nats
        return total / self.cfg.seq_len, {"trigger": 0.0, "non_trigger": nats / weight}


class AssociativeRecallSource(SyntheticSource):
    """Source of BOS, key-value pairs, then the keys in random order, each before its value.

    Keys have the ids 0..num_keys-1, values the next num_values, BOS the last. Mark: "recall",
    the query keys; all other positions have no target.
    """

    cfg: AssociativeRecallConfig

    def __init__(self, cfg: AssociativeRecallConfig, seed: int) -> None:
        super().__init__(cfg, seed)
        self.vocab_size = cfg.num_keys + cfg.num_values + 1
        self.bos_id = self.vocab_size - 1
        self.loss_floor, self.mark_floor = 0.0, {"recall": 0.0}
        self._first_query = 1 + 2 * cfg.num_pairs

    def sample(self, rng: np.random.Generator, num_sequences: int) -> Int64[np.ndarray, "B S"]:
        """Sample pairs and queries from one uniform number for each key, value and query."""
        cfg = self.cfg
        num_queries = -(-(cfg.seq_len - 2 * cfg.num_pairs) // 2)
        rounds = -(-num_queries // cfg.num_pairs)
        width = cfg.num_keys + cfg.num_pairs * (1 + rounds)
        uniform = rng.random((num_sequences, width))
        by_key, by_value, by_query = np.split(
            uniform, [cfg.num_keys, cfg.num_keys + cfg.num_pairs], 1
        )
        keys = np.argsort(by_key, axis=1)[:, : cfg.num_pairs]
        values = cfg.num_keys + (by_value * cfg.num_values).astype(np.int64)
        order = np.argsort(by_query.reshape(num_sequences, rounds, cfg.num_pairs), axis=2)
        asked = order.reshape(num_sequences, -1)[:, :num_queries]
        out = np.empty((num_sequences, 1 + 2 * (cfg.num_pairs + num_queries)), dtype=np.int64)
        out[:, 0] = self.bos_id
        out[:, 1 : self._first_query : 2] = keys
        out[:, 2 : self._first_query : 2] = values
        out[:, self._first_query :: 2] = np.take_along_axis(keys, asked, axis=1)
        out[:, self._first_query + 1 :: 2] = np.take_along_axis(values, asked, axis=1)
        return out[:, : cfg.seq_len + 1]

    def label(self, sequences: Int64[np.ndarray, "B S"]) -> Batch:
        """Return the values after the query keys as the only targets."""
        recall = np.zeros((len(sequences), self.seq_len), dtype=bool)
        recall[:, self._first_query :: 2] = True
        targets = np.where(recall, sequences[:, 1:], IGNORE)
        return Batch(
            torch.from_numpy(np.ascontiguousarray(sequences[:, :-1])),
            torch.from_numpy(targets),
            marks={"recall": torch.from_numpy(recall)},
        )

    def decode_tokens(self, ids: list[int]) -> list[str]:
        """Return BOS, keys as k0.., and values as v0... for display."""
        keys = self.cfg.num_keys
        return [
            "<bos>" if i == self.bos_id else f"k{i}" if i < keys else f"v{i - keys}" for i in ids
        ]


def stationary_distribution(table: Float[np.ndarray, "n n"]) -> Float[np.ndarray, " n"]:
    """The chain's long-run token frequencies: power iteration on the lazy chain."""
    frequency = np.full(len(table), 1 / len(table))
    for _ in range(10_000):
        following = 0.5 * (frequency + frequency @ table)
        if np.abs(following - frequency).max() < 1e-14:
            break
        frequency = following
    return frequency


def alias_tables(
    table: Float[np.ndarray, "r c"],
) -> tuple[Float64[np.ndarray, "r c"], Int64[np.ndarray, "r c"]]:
    """Walker's alias method for every row: draw a column uniformly, keep it with probability
    `accept`, else take `alias`."""
    rows, columns = table.shape
    accept = np.ones((rows, columns))
    alias = np.tile(np.arange(columns), (rows, 1))
    for row in range(rows):
        scaled = table[row] * columns
        small = [c for c in range(columns) if scaled[c] < 1]
        large = [c for c in range(columns) if scaled[c] >= 1]
        while small and large:
            low, high = small.pop(), large[-1]
            accept[row, low], alias[row, low] = scaled[low], high
            scaled[high] -= 1 - scaled[low]
            if scaled[high] < 1:
                small.append(large.pop())
    return accept, alias
