"""The vectorised samplers against plain loops and closed forms."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from gatelm.data.batch import IGNORE
from gatelm.data.config import AssociativeRecallConfig, BigramBackcopyConfig
from gatelm.data.synthetic import (
    AssociativeRecallSource,
    BigramBackcopySource,
    alias_tables,
    stationary_distribution,
)

BACKCOPY = BigramBackcopySource(BigramBackcopyConfig(), seed=0)


def test_alias_tables_hold_the_distribution():
    table = np.random.default_rng(0).dirichlet(np.full(17, 0.1), size=17)
    accept, alias = alias_tables(table)
    rebuilt = np.zeros_like(table)
    for row in range(17):
        for column in range(17):
            rebuilt[row, column] += accept[row, column] / 17
            rebuilt[row, alias[row, column]] += (1 - accept[row, column]) / 17
    np.testing.assert_allclose(rebuilt, table, atol=1e-12)


def test_stationary_distribution_is_the_eigenvector():
    np.testing.assert_allclose(
        stationary_distribution(np.array([[0.9, 0.1], [0.3, 0.7]])), [0.75, 0.25], atol=1e-12
    )
    alternating = np.array([[0.0, 1.0], [1.0, 0.0]])
    np.testing.assert_allclose(stationary_distribution(alternating), [0.5, 0.5], atol=1e-12)


def test_the_triggers_are_the_most_frequent_tokens():
    frequency = stationary_distribution(BACKCOPY.table)
    others = np.delete(frequency, BACKCOPY.triggers)
    assert len(BACKCOPY.triggers) == 3
    assert frequency[BACKCOPY.triggers].min() >= others.max()


def test_every_backcopy_sequence_obeys_the_rules():
    """A plain walk: BOS, an ordinary token, then copies after triggers and possible bigrams."""
    batch = BACKCOPY.batch(3, batch_size=64)
    triggers = set(BACKCOPY.triggers.tolist())
    for row, following in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        assert row[0] == BACKCOPY.bos_id
        assert row[1] not in triggers
        assert row[1:] == following[:-1]
        for t in range(1, len(row)):
            if row[t] in triggers:
                assert following[t] == row[t - 1]
                assert following[t] < BACKCOPY.bos_id
            else:
                assert BACKCOPY.table[row[t], following[t]] > 0


def test_backcopy_marks():
    batch = BACKCOPY.batch(0, batch_size=32)
    trigger, other = batch.marks["trigger"], batch.marks["non_trigger"]
    wanted = torch.isin(batch.tokens, torch.from_numpy(BACKCOPY.triggers))
    assert torch.equal(trigger, wanted)
    assert not (trigger & other).any()
    assert not other[:, 0].any()
    assert (trigger | other)[:, 1:].all()


def naive_backcopy(source, rng):
    """One sequence, token by token, with the library's own choice of a weighted token."""
    ordinary = [t for t in range(source.bos_id) if t not in source.triggers]
    out = [source.bos_id, int(rng.choice(ordinary))]
    while len(out) <= source.seq_len:
        if out[-1] in source.triggers:
            out.append(out[-2])
        else:
            out.append(int(rng.choice(source.bos_id, p=source.table[out[-1]])))
    return out


def test_the_sampler_has_the_distribution_of_the_naive_twin():
    source = BigramBackcopySource(
        BigramBackcopyConfig(num_tokens=6, num_triggers=1, seq_len=8, dirichlet=1.0), seed=5
    )
    rng = np.random.default_rng(11)
    naive = np.array([naive_backcopy(source, rng) for _ in range(3000)])
    fast = source.sample(rng, 3000)
    for position in (1, 2, 3, 8):
        counts = [np.bincount(s[:, position], minlength=6) for s in (naive, fast)]
        kept = np.stack(counts)[:, np.sum(counts, axis=0) > 0]
        assert stats.chi2_contingency(kept).pvalue > 1e-4


def test_bigrams_have_the_frequencies_of_the_table():
    sequences = BACKCOPY.sample(np.random.default_rng(0), 4000)
    before, after = sequences[:, 1:-1].ravel(), sequences[:, 2:].ravel()
    token = next(t for t in range(64) if t not in BACKCOPY.triggers and (before == t).sum() > 3000)
    seen = np.bincount(after[before == token], minlength=64) / (before == token).sum()
    error = np.sqrt(BACKCOPY.table[token] / (before == token).sum())
    assert (np.abs(seen - BACKCOPY.table[token]) <= 5 * error + 1e-4).all()


def test_the_loss_floor_is_the_loss_of_the_true_process():
    batch = next(BACKCOPY.validation(4096, 4096))
    tokens, targets = batch.tokens.numpy(), batch.targets.numpy()
    table = np.vstack([BACKCOPY.table, np.zeros(64)])
    nll = -np.log(np.maximum(table[tokens, targets], 1e-300))
    nll[batch.marks["trigger"].numpy()] = 0.0
    nll[:, 0] = math.log(61)
    assert nll.mean() == pytest.approx(BACKCOPY.loss_floor, abs=0.01)
    other = nll[batch.marks["non_trigger"].numpy()].mean()
    assert other == pytest.approx(BACKCOPY.mark_floor["non_trigger"], abs=0.01)
    assert BACKCOPY.mark_floor["trigger"] == 0.0


def test_a_uniform_table_has_the_closed_form_floor():
    source = BigramBackcopySource(
        BigramBackcopyConfig(num_tokens=10, num_triggers=1, dirichlet=1e7, seq_len=5), seed=0
    )
    assert source.mark_floor["non_trigger"] == pytest.approx(math.log(10), abs=1e-4)
    # p = probability that position t holds no trigger: p' = 0.9 p + (1 - p), from p = 1
    plain, share = 0.0, 1.0
    for _ in range(4):
        plain, share = plain + share, 0.9 * share + (1 - share)
    expected = (math.log(9) + plain * math.log(10)) / 5
    assert source.loss_floor == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("config", [BigramBackcopyConfig, AssociativeRecallConfig])
def test_rows_do_not_depend_on_the_batch_size(config):
    kinds = {BigramBackcopyConfig: BigramBackcopySource}
    source = kinds.get(config, AssociativeRecallSource)(config(), seed=0)
    large, small = source.batch(4, batch_size=32), source.batch(4, batch_size=8)
    assert torch.equal(large.tokens[:8], small.tokens)


def test_training_and_held_out_samples_differ():
    cfg = BigramBackcopyConfig(task_seed=0)
    train = BigramBackcopySource(cfg, seed=0).batch(0, batch_size=64).tokens
    held_out = next(BigramBackcopySource(cfg, seed=0).validation(64, 64)).tokens
    assert not {tuple(row) for row in train.tolist()} & {tuple(row) for row in held_out.tolist()}


def test_the_task_seed_alone_decides_the_table():
    one = BigramBackcopySource(BigramBackcopyConfig(), seed=9)
    np.testing.assert_array_equal(one.table, BACKCOPY.table)
    other = BigramBackcopySource(BigramBackcopyConfig(task_seed=1), seed=0)
    assert not np.array_equal(other.table, BACKCOPY.table)


@pytest.mark.parametrize(
    ("num_pairs", "seq_len"), [(1, 4), (3, 8), (3, 9), (8, 64), (8, 33), (8, 34)]
)
def test_every_recall_sequence_obeys_the_rules(num_pairs, seq_len):
    cfg = AssociativeRecallConfig(num_pairs=num_pairs, seq_len=seq_len, num_keys=9, num_values=5)
    source = AssociativeRecallSource(cfg, seed=0)
    batch = source.batch(0, batch_size=40)
    assert batch.tokens.shape == (40, seq_len)
    for r, row in enumerate(batch.tokens.tolist()):
        assert row[0] == source.bos_id
        pairs = dict(zip(row[1 : 2 * num_pairs : 2], row[2 : 2 * num_pairs + 1 : 2], strict=True))
        assert len(pairs) == num_pairs
        assert all(key < 9 <= value < 14 for key, value in pairs.items())
        queries = list(range(2 * num_pairs + 1, seq_len, 2))
        for t in range(seq_len):
            assert bool(batch.marks["recall"][r, t]) == (t in queries)
            expected = pairs[row[t]] if t in queries else IGNORE
            assert int(batch.targets[r, t]) == expected
            if t in queries and t + 1 < seq_len:
                assert row[t + 1] == expected
        for start in range(0, len(queries), num_pairs):
            asked = [row[t] for t in queries[start : start + num_pairs]]
            assert len(set(asked)) == len(asked)


def test_decoded_names():
    marked = [int(BACKCOPY.triggers[0]), 64]
    assert BACKCOPY.decode_tokens(marked) == [f"{marked[0]}*", "<bos>"]
    recall = AssociativeRecallSource(AssociativeRecallConfig(), seed=0)
    assert recall.decode_tokens([3, 34, 64]) == ["k3", "v2", "<bos>"]
