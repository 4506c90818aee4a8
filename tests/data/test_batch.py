import torch

from gatelm.data.batch import IGNORE, Batch


def make_batch():
    tokens = torch.arange(12).view(3, 4)
    targets = tokens + 1
    targets[1, 2] = IGNORE
    return Batch(tokens, targets, torch.zeros_like(tokens), {"odd": tokens % 2 == 1})


def test_rows_cuts_every_tensor():
    part = make_batch().rows(1, 3)
    assert len(part) == 2
    assert part.documents is not None
    assert part.tokens[0, 0] == 4
    assert part.documents.shape == part.targets.shape == part.marks["odd"].shape == (2, 4)


def test_num_targets_leaves_out_ignored():
    assert make_batch().num_targets == 11
    assert make_batch().rows(0, 1).num_targets == 4


def test_to_moves_every_tensor():
    moved = make_batch().to("meta")
    assert moved.documents is not None
    tensors = (moved.tokens, moved.targets, moved.documents, moved.marks["odd"])
    assert all(t.device.type == "meta" for t in tensors)
    assert Batch(moved.tokens, moved.targets).to("meta").documents is None
