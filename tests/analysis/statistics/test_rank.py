import math

import pytest
import torch

from gatelm.analysis.statistics.rank import RankTotals


def ranks_of(rows):
    totals = RankTotals()
    totals.add(rows[None], torch.ones(1, len(rows), dtype=torch.bool))
    return totals.ranks()


def naive(rows, suffix=""):
    values = torch.linalg.svdvals(rows.double())
    shares = values / values.sum()
    squares = values.square()
    return {
        f"effective_rank{suffix}": math.exp(float(torch.special.entr(shares).sum())),
        f"stable_rank{suffix}": float(squares.sum() / squares.max()),
        f"participation_ratio{suffix}": float(squares.sum() ** 2 / squares.square().sum()),
    }


def test_against_singular_values():
    rows = torch.randn(300, 12, generator=torch.Generator().manual_seed(0))
    rows = rows @ torch.randn(12, 12, generator=torch.Generator().manual_seed(1)) + 3.0
    found = ranks_of(rows)
    centred = rows.double() - rows.double().mean(dim=0)
    for name, value in {**naive(rows), **naive(centred, "_centred")}.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name
    assert (found["tokens"], found["width"]) == (300, 12)


def test_equal_directions_have_full_rank_and_one_direction_has_one():
    for name, value in ranks_of(torch.eye(8).repeat(4, 1)).items():
        if not name.endswith("_centred") and name not in ("tokens", "width"):
            assert value == pytest.approx(8.0), name
    one = torch.outer(
        torch.randn(50, generator=torch.Generator().manual_seed(0)), torch.arange(6.0)
    )
    found = ranks_of(one)
    assert found["effective_rank"] == pytest.approx(1.0, abs=1e-4)
    assert found["stable_rank"] == pytest.approx(1.0)


def test_a_common_vector_hides_the_rest_until_the_mean_is_taken_off():
    rows = torch.randn(500, 8, generator=torch.Generator().manual_seed(0))
    rows[:, 0] += 1000.0
    found = ranks_of(rows)
    assert found["effective_rank"] < 1.2
    assert found["effective_rank_centred"] > 7.5


def test_padding_is_left_out_heads_are_joined_and_batches_add_up():
    vectors = torch.randn(2, 30, 3, 4, generator=torch.Generator().manual_seed(0))
    where = torch.rand(2, 30, generator=torch.Generator().manual_seed(1)) < 0.7
    totals = RankTotals()
    for b in (0, 1):
        totals.add(vectors[b : b + 1], where[b : b + 1])
    found = totals.ranks()
    assert found["tokens"] == int(where.sum())
    assert found["effective_rank"] == pytest.approx(
        naive(vectors[where].flatten(1))["effective_rank"], rel=1e-6
    )


def test_without_tokens_or_with_nan_there_is_no_number():
    assert RankTotals().ranks() == {}
    rows = torch.ones(10, 3)
    rows[2, 1] = float("nan")
    assert math.isnan(ranks_of(rows)["effective_rank"])
