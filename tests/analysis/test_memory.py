"""No statistic may need a T x T matrix: the largest tensor that appears grows with T at most."""

from collections.abc import Callable

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gatelm.analysis.causal import interventions
from gatelm.analysis.measure import analyze_batches, health
from gatelm.analysis.probe.handover import DecoderHandover
from gatelm.analysis.statistics.streaming import attention_rows
from gatelm.inference.streaming import streaming_losses
from gatelm.nn.attention.masks import AttentionMask
from gatelm.testing.statistics import naive_attention_rows


class Largest(TorchDispatchMode):
    """The most bytes that one tensor of the block has in memory; views count as their storage."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor):
                self.num_bytes = max(self.num_bytes, leaf.untyped_storage().nbytes())
        return output


def largest(work: Callable[[], object]) -> int:
    with Largest() as seen:
        work()
    return seen.num_bytes


def rows_at(tokens, compute=attention_rows, **settings):
    q, k = torch.randn(1, tokens, 4, 8), torch.randn(1, tokens, 2, 8)
    mask = AttentionMask(tokens, tokens)
    return lambda: compute(q, k, mask, scale=0.3, **settings)


@pytest.mark.parametrize("window_tokens", [None, 100])
def test_attention_rows_stay_within_their_blocks(window_tokens):
    settings = {"window_tokens": window_tokens, "block_elements": 1 << 16}
    small, large = (largest(rows_at(tokens, **settings)) for tokens in (512, 2048))
    assert small <= (1 << 16) * 4
    assert large <= (1 << 16) * 4


def test_the_naive_twin_would_fail_this():
    assert largest(rows_at(128, naive_attention_rows)) >= 4 * 128 * 128 * 4


@pytest.mark.parametrize("measure", [analyze_batches, health])
@pytest.mark.parametrize("gate", ["sdpa-element", "value"])
def test_an_analysis_of_a_model_has_no_matrix(build, batch, measure, gate):
    """One head's 2048 x 2048 matrix would have 16 MiB; a block of weights may have 4."""
    model = build(gate)
    rows = batch(rows=1, tokens=2048)
    settings = {"detail": "full"} if measure is analyze_batches else {}
    assert largest(lambda: measure(model, [rows], **settings)) < 5 << 20


def test_interventions_have_no_matrix(build, batch):
    rows = batch(rows=1, tokens=2048)
    assert largest(lambda: interventions(build("sdpa-head"), [rows])) < 2 << 20


def test_streaming_needs_a_window_whatever_the_text(build):
    handover = DecoderHandover(build())

    def stream(tokens):
        text = torch.arange(tokens) % 32
        return lambda: streaming_losses(
            handover, text, first_tokens=4, window_tokens=32, chunk_tokens=32
        )

    assert largest(stream(200)) == largest(stream(1600))
