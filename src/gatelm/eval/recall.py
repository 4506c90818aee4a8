"""Associative recall by length and depth, for models trained on that task.

A row of another length has pairs in proportion, so that a longer row asks for more pairs from
further away (the task of arXiv 2312.04927). Only a key's first query counts: later ones could copy
from the answer to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gatelm.analysis.probe.protocol import Probe
from gatelm.config import ConfigError
from gatelm.data.config import AssociativeRecallConfig
from gatelm.data.source import build_source
from gatelm.nn.shapes import Float, Int, Tensor

TOKENS_PER_BATCH = 8192


def recall_config(cfg: AssociativeRecallConfig, length: int) -> AssociativeRecallConfig:
    """Return the task's config with rows of `length` tokens.

    Raises:
        ConfigError: when a row has no room for a pair and a query, or more pairs than keys.
    """
    pairs = max(1, round(cfg.num_pairs * length / cfg.seq_len))
    return AssociativeRecallConfig.parse(
        {**cfg.tree(), "seq_len": length, "num_pairs": pairs}, f"--lengths {length}"
    )


@torch.no_grad()
def recall_by_depth(
    probe: Probe,
    cfg: AssociativeRecallConfig,
    lengths: Sequence[int],
    *,
    depths: int = 5,
    rows: int = 64,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> list[dict[str, Any]]:
    """Share of right answers by length and by the place of the pair among the pairs.

    Cells have length_tokens, depth (percent, the middle of one of `depths` equal parts), score and
    queries. An answer is the token with the largest logit.

    Raises:
        ConfigError: a length that the task cannot have, or a model of another vocabulary.
    """
    tasks = [recall_config(cfg, length) for length in sorted(set(lengths))]
    cells: list[dict[str, Any]] = []
    for done, task in enumerate(tasks):
        source = build_source(task, seed=0)
        if source.vocab_size != probe.vocab_size:
            raise ConfigError(
                f"{probe.name}: a vocabulary of {probe.vocab_size}, but the task has "
                f"{source.vocab_size}"
            )
        right = torch.zeros(depths, dtype=torch.float64)
        queries = torch.zeros(depths, dtype=torch.float64)
        for batch in source.validation(max(1, TOKENS_PER_BATCH // task.seq_len), rows):
            hidden = probe.observe(batch.tokens.to(probe.device))
            asked = batch.marks["recall"].clone()
            asked[:, 1 + 4 * task.num_pairs :] = False
            found = probe.logits(hidden[asked.to(hidden.device)]).argmax(dim=-1).cpu()
            part = (depth_of_answers(batch.tokens, task.num_pairs)[asked] * depths).long()
            part = part.clamp(max=depths - 1)
            queries.index_add_(0, part, torch.ones(len(part), dtype=torch.float64))
            right.index_add_(0, part, (found == batch.targets[asked]).double())
        for part in range(depths):
            if queries[part]:
                cells.append(
                    {
                        "length_tokens": task.seq_len,
                        "depth": round(100 * (part + 0.5) / depths, 1),
                        "score": float(right[part] / queries[part]),
                        "queries": int(queries[part]),
                    }
                )
        report(done + 1, len(tasks))
    return cells


def depth_of_answers(tokens: Int[Tensor, "B T"], num_pairs: int) -> Float[Tensor, "B T"]:
    """Depth of the pair that has a token as its key: 0 first, below 1 last; 0 for other tokens."""
    keys = tokens[:, 1 : 1 + 2 * num_pairs : 2]
    place = (tokens[:, :, None] == keys[:, None, :]).int().argmax(dim=-1)
    return place.float() / num_pairs
