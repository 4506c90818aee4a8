"""The two-modality task: what is asked can be read off the image, and nowhere else."""

import numpy as np
import pytest
import torch

from gatelm.data.batch import IGNORE
from gatelm.data.config import PatchRecallConfig
from gatelm.data.patches import PatchRecallSource

CFG = PatchRecallConfig(num_patches=6, min_patches=2, num_classes=5, patch_dim=32, seq_len=9)
SOURCE = PatchRecallSource(CFG, seed=0)


def test_the_answer_is_the_class_of_the_patch_at_the_place():
    batch = SOURCE.batch(3, batch_size=64)
    assert batch.memory is not None
    assert batch.memory_mask is not None
    assert batch.tokens.shape == batch.targets.shape == (64, 9)
    counts = batch.memory_mask.sum(dim=1)
    assert (counts.min(), counts.max()) == (2, 6)
    for row in range(64):
        tokens, targets = batch.tokens[row].tolist(), batch.targets[row].tolist()
        assert tokens[0] == SOURCE.bos_id
        for t in range(9):
            if t % 2 == 0:
                assert targets[t] == IGNORE
                continue
            assert tokens[t] < counts[row]
            patch = batch.memory[row, tokens[t]].numpy()
            nearest = np.square(SOURCE.classes - patch).sum(axis=1).argmin()
            assert targets[t] == CFG.num_patches + nearest
            if t + 1 < 9:
                assert tokens[t + 1] == targets[t]
    assert torch.equal(batch.marks["asked"], batch.targets != IGNORE)


def test_ranks_share_the_global_batch():
    whole = SOURCE.batch(1, batch_size=8)
    parts = [SOURCE.batch(1, batch_size=8, rank=r, world_size=2) for r in range(2)]
    for name in ("tokens", "targets", "memory", "memory_mask"):
        assert torch.equal(torch.cat([getattr(p, name) for p in parts]), getattr(whole, name))


def test_seeds_and_held_out_samples():
    other = PatchRecallSource(CFG, seed=1)
    assert not torch.equal(
        other.batch(0, batch_size=4).tokens, SOURCE.batch(0, batch_size=4).tokens
    )
    np.testing.assert_array_equal(other.classes, SOURCE.classes)
    ours, theirs = (next(s.validation(4, 4)) for s in (SOURCE, other))
    assert torch.equal(ours.tokens, theirs.tokens)


def test_rows_of_a_batch_keep_their_image():
    batch = SOURCE.batch(0, batch_size=6)
    part = batch.rows(2, 4).to("cpu")
    assert torch.equal(part.memory, batch.memory[2:4])
    assert set(part.second) == {"memory", "memory_mask"}


def test_display_and_impossible_sizes():
    assert SOURCE.decode_tokens([SOURCE.bos_id, 3, 7]) == ["<bos>", "@3", "c1"]
    with pytest.raises(ValueError, match="more than num_patches"):
        PatchRecallConfig(num_patches=4, min_patches=5)
