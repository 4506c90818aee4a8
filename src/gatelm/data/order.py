"""The order of sequences: a pure function of (seed, step, rank), with no state to save."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from jaxtyping import Int64

_ORDER_STREAM = 0x6F72  # keeps the order's random numbers apart from every other use of the seed


@lru_cache(maxsize=4)
def epoch_permutation(seed: int, epoch: int, num_sequences: int) -> Int64[np.ndarray, " n"]:
    """Return the order of one epoch: a read-only permutation of range(num_sequences)."""
    sequence = np.random.SeedSequence([_ORDER_STREAM, seed, epoch])
    order = np.random.Generator(np.random.Philox(sequence)).permutation(num_sequences)
    order.flags.writeable = False
    return order


def rank_rows(batch_size: int, rank: int = 0, world_size: int = 1) -> slice:
    """Return the contiguous rows of a global batch that belong to one rank.

    Raises:
        ValueError: for a rank outside the world, or fewer rows than ranks.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} is outside a world of {world_size}")
    if batch_size < world_size:
        raise ValueError(
            f"a global batch of {batch_size} sequences cannot feed {world_size} ranks; "
            "raise train.batch_size or use fewer ranks"
        )
    return slice(batch_size * rank // world_size, batch_size * (rank + 1) // world_size)


def sequence_indices(
    seed: int,
    step: int,
    *,
    batch_size: int,
    num_sequences: int,
    rank: int = 0,
    world_size: int = 1,
) -> Int64[np.ndarray, " b"]:
    """Return the indices of the sequences that `rank` reads at `step` (from 0).

    The global order is the epochs' permutations one after another, cut into batches of
    `batch_size`; a batch may straddle two epochs. Ranks take disjoint contiguous slices of it,
    so the global order is the same in every world size.
    """
    rows = rank_rows(batch_size, rank, world_size)
    positions = np.arange(step * batch_size + rows.start, step * batch_size + rows.stop)
    epochs, within = np.divmod(positions, num_sequences)
    out = np.empty(len(positions), dtype=np.int64)
    for epoch in np.unique(epochs):
        chosen = epochs == epoch
        out[chosen] = epoch_permutation(seed, int(epoch), num_sequences)[within[chosen]]
    return out
