"""A tiny model with a planted sink: BOS has a large embedding that every query's key likes."""

from __future__ import annotations

import random

import torch

from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig

BOS = 256
SLOW = 3
"""The channel of a head of 8 that rotary positions turn least."""


def planted(
    *, sinks=(BOS,), strength=9.0, varies=2.0, dtype=torch.float32, scale=4.0, **mixer
) -> Decoder:
    """A model whose tokens `sinks` draw attention; `varies`: how much that depends on the query."""
    tree = {
        "vocab_size": 258,
        "hidden_dim": 32,
        "num_layers": 2,
        "layer": {
            "mixer": {
                "num_heads": 4,
                "num_kv_heads": 2,
                "head_dim": 8,
                "bias": "qkv",
                "rope": {"base": 1e6},
                **mixer,
            },
            "ffn": {"ffn_dim": 48},
        },
    }
    model = Decoder(ModelConfig.parse(tree, "model")).to(dtype).eval()
    init_weights(model, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter *= scale
        model.embedding.weight[:, 0] = 0.0
        model.embedding.weight[list(sinks)] = 0.0
        model.embedding.weight[list(sinks), 0] = 30.0
        for layer in model.layers:
            q, k = layer.attn.qkv.q, layer.attn.qkv.k
            q.weight[:, 0] = 0.0
            k.weight[SLOW::8] = 0.0
            k.weight[:, 0] = 0.0
            k.weight[SLOW::8, 0] = 1.0
            q.weight[SLOW::8] *= varies
            if q.bias is not None:
                q.bias[SLOW::8] = strength / (32**0.5 * 8**-0.5)
    return model


def some_texts(count: int, num_bytes: int, front: str = "") -> list[str]:
    drawn = random.Random(0)
    letters = "abcdefghij klmnop"
    rest = num_bytes - len(front)
    return [front + "".join(drawn.choices(letters, k=rest)) for _ in range(count)]
