"""One comparison of a mixer with its naive twin for all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gatelm.nn.attention.masks import AttentionMask, positions_in_documents
from gatelm.nn.block import Block, LayerConfig
from gatelm.nn.forward_state import Context


def _assert_equals_twin(
    cfg: LayerConfig,
    hidden_dim: int,
    twin: Callable[..., torch.Tensor],
    with_documents: bool,
) -> None:
    """Forward, and gradients of all the mixer's parameters, in float64."""
    block = Block(cfg, hidden_dim, 0).double()
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(0, 0.6, generator=g)
    x, resid = (torch.randn(2, 9, hidden_dim, generator=g, dtype=torch.float64) for _ in range(2))
    documents, positions = None, torch.arange(9)
    if with_documents:
        documents = torch.tensor([[0, 0, 0, 1, 1, 2, 3, 3, 3], [-1, -1, 0, 0, 0, 0, 0, 0, 0]])
        positions = positions_in_documents(documents)
    context = Context(AttentionMask(9, 9, documents), positions)
    parameters = dict(block.named_parameters())
    used = {k: p for k, p in parameters.items() if k.startswith("attn.")}
    ours = block.attn(x, resid, context)
    theirs = twin(cfg, hidden_dim, parameters, x, resid, documents)
    torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)
    for a, b in zip(
        torch.autograd.grad(ours.square().sum(), list(used.values())),
        torch.autograd.grad(theirs.square().sum(), list(used.values())),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)


@pytest.fixture
def assert_equals_twin() -> Callable[..., None]:
    """`(layer config, hidden_dim, naive twin, with_documents)`."""
    return _assert_equals_twin
