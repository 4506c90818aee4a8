import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatelm.data.order import epoch_permutation, rank_rows, sequence_indices

SMALL = settings(max_examples=60, deadline=None)


@SMALL
@given(seed=st.integers(0, 2**32), epoch=st.integers(0, 50), n=st.integers(1, 200))
def test_epoch_is_a_permutation(seed, epoch, n):
    assert sorted(epoch_permutation(seed, epoch, n)) == list(range(n))


@SMALL
@given(
    seed=st.integers(0, 1000), n=st.integers(1, 40), batch_size=st.integers(1, 64),
    steps=st.integers(1, 12),
)  # fmt: skip
def test_steps_walk_the_epochs_one_after_another(seed, n, batch_size, steps):
    read = np.concatenate(
        [sequence_indices(seed, s, batch_size=batch_size, num_sequences=n) for s in range(steps)]
    )
    epochs = [epoch_permutation(seed, e, n) for e in range(steps * batch_size // n + 1)]
    np.testing.assert_array_equal(read, np.concatenate(epochs)[: len(read)])


@SMALL
@given(
    step=st.integers(0, 100), batch_size=st.integers(1, 64), n=st.integers(1, 300), data=st.data()
)
def test_ranks_cut_the_same_global_batch(step, batch_size, n, data):
    world_size = data.draw(st.integers(1, batch_size))
    whole = sequence_indices(7, step, batch_size=batch_size, num_sequences=n)
    parts = [
        sequence_indices(
            7, step, batch_size=batch_size, num_sequences=n, rank=r, world_size=world_size
        )
        for r in range(world_size)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_epochs_and_seeds_differ():
    assert not np.array_equal(epoch_permutation(0, 0, 100), epoch_permutation(0, 1, 100))
    assert not np.array_equal(epoch_permutation(0, 0, 100), epoch_permutation(1, 0, 100))


def test_order_of_seed_zero_is_what_it_always_was():
    """A change here makes every resumed run read other data than it would have."""
    assert epoch_permutation(0, 0, 12).tolist() == [5, 4, 0, 7, 9, 8, 10, 1, 6, 2, 11, 3]


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2)])
def test_rank_outside_the_world_is_refused(rank, world_size):
    with pytest.raises(ValueError, match="outside a world of 2"):
        rank_rows(8, rank, world_size)


def test_more_ranks_than_rows_is_refused():
    with pytest.raises(ValueError, match="cannot feed 4 ranks"):
        rank_rows(3, 0, 4)
