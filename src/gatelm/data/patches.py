"""Recall of image patches: the answers stand in a second sequence, not in the text."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64

from gatelm.data.batch import IGNORE, Batch
from gatelm.data.config import PatchRecallConfig
from gatelm.data.synthetic import SyntheticSource, task_generator


class PatchRecallSource(SyntheticSource):
    """Source of patch recall. Places have the ids 0..num_patches-1, then classes, then BOS.

    Mark: "asked", the queries whose answer stands in the image.
    """

    cfg: PatchRecallConfig

    def __init__(self, cfg: PatchRecallConfig, seed: int) -> None:
        super().__init__(cfg, seed)
        self.vocab_size = cfg.num_patches + cfg.num_classes + 1
        self.bos_id = self.vocab_size - 1
        self.memory_dim = cfg.patch_dim
        self.loss_floor, self.mark_floor = 0.0, {"asked": 0.0}
        drawn = task_generator(cfg.task_seed).normal(size=(cfg.num_classes, cfg.patch_dim))
        length = np.linalg.norm(drawn, axis=1, keepdims=True) / np.sqrt(cfg.patch_dim)
        self.classes = drawn / length
        """Vector of each class, (num_classes, patch_dim)."""

    def make(self, rng: np.random.Generator, num_sequences: int, rows: slice) -> Batch:
        """Make some rows of a batch of `num_sequences`, each with its image."""
        cfg, num_asked = self.cfg, self.seq_len // 2 + 1
        width = 1 + cfg.num_patches + num_asked
        noise = rng.spawn(1)[0].normal(size=(num_sequences, cfg.num_patches, cfg.patch_dim))
        uniform = rng.random((num_sequences, width))
        by_count, by_kind, by_place = np.split(uniform, [1, 1 + cfg.num_patches], axis=1)
        counts = cfg.min_patches + _whole(by_count, cfg.num_patches - cfg.min_patches + 1)
        kinds = _whole(by_kind, cfg.num_classes)
        asked = _whole(by_place, counts)
        sequences = np.empty((num_sequences, 1 + 2 * num_asked), dtype=np.int64)
        sequences[:, 0] = self.bos_id
        sequences[:, 1::2] = asked
        sequences[:, 2::2] = cfg.num_patches + np.take_along_axis(kinds, asked, axis=1)
        patches = (self.classes[kinds] + cfg.noise * noise).astype(np.float32)
        present = np.arange(cfg.num_patches) < counts
        return self._batch(sequences[rows], patches[rows], present[rows])

    def _batch(
        self,
        sequences: Int64[np.ndarray, "B t"],
        patches: Float32[np.ndarray, "B M P"],
        present: Bool[np.ndarray, "B M"],
    ) -> Batch:
        is_asked = np.zeros((len(sequences), self.seq_len), dtype=bool)
        is_asked[:, 1::2] = True
        following = sequences[:, 1 : self.seq_len + 1]
        return Batch(
            torch.from_numpy(np.ascontiguousarray(sequences[:, : self.seq_len])),
            torch.from_numpy(np.where(is_asked, following, IGNORE)),
            marks={"asked": torch.from_numpy(is_asked)},
            memory=torch.from_numpy(np.ascontiguousarray(patches)),
            memory_mask=torch.from_numpy(np.ascontiguousarray(present)),
        )

    def decode_tokens(self, ids: list[int]) -> list[str]:
        """Return BOS, places as @0.., and classes as c0... for display."""
        places = self.cfg.num_patches
        return [
            "<bos>" if i == self.bos_id else f"@{i}" if i < places else f"c{i - places}"
            for i in ids
        ]


def _whole(uniform: np.ndarray, below: int | np.ndarray) -> np.ndarray:
    """Turn uniform numbers in [0, 1) into whole numbers from 0 to `below` - 1."""
    return (uniform * below).astype(np.int64)
