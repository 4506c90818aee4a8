from dataclasses import dataclass, field

import pytest
import torch

from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig

VOCAB = 32


@dataclass(frozen=True)
class Rows:
    """A batch, as the analysis reads one."""

    tokens: torch.Tensor
    targets: torch.Tensor
    documents: torch.Tensor | None = None
    marks: dict[str, torch.Tensor] = field(default_factory=dict)


@pytest.fixture
def build():
    def build(*gates, seed=0, scale=5.0, **layer) -> Decoder:
        """Two layers with weights large enough for attention that is far from uniform."""
        mixer = {"num_heads": 4, "num_kv_heads": 2, **layer}
        tree = {
            "vocab_size": VOCAB,
            "hidden_dim": 32,
            "num_layers": 2,
            "layer": {"mixer": mixer, "ffn": {"ffn_dim": 48}, "gates": list(gates)},
        }
        model = Decoder(ModelConfig.parse(tree, "model"))
        init_weights(model, seed)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(scale)
        return model

    return build


@pytest.fixture
def batch():
    def batch(rows=3, tokens=24, seed=0, **fields) -> Rows:
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, VOCAB, (rows, tokens + 1), generator=generator)
        return Rows(ids[:, :-1].clone(), ids[:, 1:].clone(), **fields)

    return batch


@pytest.fixture
def padded():
    def padded(rows: Rows, left: int, right: int) -> Rows:
        """The same text between padding."""
        pad = (left, right)
        tokens = torch.nn.functional.pad(rows.tokens, pad, value=7)
        targets = torch.nn.functional.pad(rows.targets, pad, value=-100)
        documents = torch.zeros_like(rows.tokens) if rows.documents is None else rows.documents
        documents = torch.nn.functional.pad(documents, pad, value=-1)
        marks = {
            name: torch.nn.functional.pad(mark, pad, value=True)
            for name, mark in rows.marks.items()
        }
        return Rows(tokens, targets, documents, marks)

    return padded
