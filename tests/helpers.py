"""What tests of several folders build: a decoder that shows mistakes, ids, and a tiny run."""

from __future__ import annotations

from typing import Any

import torch

from gatelm.config.load import merge
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.config import RunConfig

TINY_RUN = {
    "name": "tiny",
    "seed": 1,
    "model": {
        "hidden_dim": 16,
        "num_layers": 2,
        "layer": {
            "mixer": {"num_heads": 2, "head_dim": 8},
            "ffn": {"kind": "swiglu", "ffn_dim": 24},
            "gates": ["sdpa-head"],
        },
    },
    "data": {"kind": "bigram_backcopy", "num_tokens": 16, "seq_len": 16},
    "optim": {"lr": 3e-3, "schedule": {"kind": "cosine", "warmup_steps": 2}},
    "train": {
        "total_steps": 6,
        "batch_size": 4,
        "eval_sequences": 8,
        "log_every_steps": 1,
        "precision": "fp32",
        "device": "cpu",
        "threads": 1,
    },
}
"""A run of a few milliseconds a step."""


def tiny_run(over: dict[str, Any] | None = None) -> RunConfig:
    """`TINY_RUN` with a tree laid on."""
    return RunConfig.parse(merge(TINY_RUN, over or {}))


def decoder(
    cfg: ModelConfig | dict[str, Any],
    *,
    seed: int = 0,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> Decoder:
    """A decoder in evaluation mode, its matrices `scale` times as large as at the start.

    With large matrices attention is far from uniform, and every mistake shows.
    """
    model = Decoder(cfg if isinstance(cfg, ModelConfig) else ModelConfig.parse(cfg, "model"))
    init_weights(model, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return model.to(dtype).eval()


def random_ids(
    vocab_size: int, rows: int, length: int, *, seed: int = 1, special: int = 0
) -> torch.Tensor:
    """Token ids (rows, length), the first `special` ones left out; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(special, vocab_size, (rows, length), generator=generator)
