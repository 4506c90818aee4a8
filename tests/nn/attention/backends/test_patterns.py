"""Every pattern under every backend against loops over queries and keys."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import flex_attention

from gatelm.nn.attention.backends import BACKENDS, band
from gatelm.nn.attention.masks import PADDING, AttentionMask
from gatelm.nn.attention.pattern import BlockSparseConfig, Pattern
from gatelm.testing.patterns import added, visible

SLOPES = (0.5, 0.25, 0.125, 0.0625)
PATTERNS = {
    "causal": Pattern(),
    "window": Pattern(window_tokens=3),
    "window of one": Pattern(window_tokens=1),
    "window and first tokens": Pattern(window_tokens=3, first_tokens=2),
    "local blocks": Pattern(blocks=BlockSparseConfig(block_tokens=3, local_blocks=2)),
    "strided blocks": Pattern(blocks=BlockSparseConfig(block_tokens=2, stride_blocks=3)),
    "global blocks": Pattern(blocks=BlockSparseConfig(block_tokens=2, global_blocks=1)),
    "all blocks": Pattern(
        blocks=BlockSparseConfig(block_tokens=2, local_blocks=2, stride_blocks=4, global_blocks=1)
    ),
    "alibi": Pattern(alibi_slopes=SLOPES),
    "alibi in a window": Pattern(window_tokens=4, first_tokens=1, alibi_slopes=SLOPES),
    "full": Pattern(direction="full"),
    "full window": Pattern(window_tokens=3, direction="full"),
    "full blocks": Pattern(
        blocks=BlockSparseConfig(block_tokens=2, stride_blocks=3), direction="full"
    ),
}
T = 13
DOCUMENTS = {
    "one": None,
    "packed and padded": [[PADDING] * 2 + [0] * 6 + [1] * 5, [0] * 9 + [1] * 2 + [PADDING] * 2],
}


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """Flex attention as torch runs it without its compiler, which takes seconds a call."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def observe(name, tensor):
    return tensor


def inputs(num_queries=T, num_keys=T, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, num_queries, 4, 6), (2, num_keys, 2, 6), (2, num_keys, 2, 5)]
    return [2 * torch.randn(s, dtype=dtype, generator=generator) for s in shapes]


def naive(q, k, v, documents, pattern, scale):
    """Outputs and log-sum-exps of the last queries, one at a time."""
    before = k.shape[1] - q.shape[1]
    outputs, lses = [], []
    for b in range(2):
        docs = [0] * k.shape[1] if documents is None else documents[b]
        for t in range(q.shape[1]):
            seen = [j for j in range(k.shape[1]) if visible(t + before, j, docs, pattern)]
            for h in range(4):
                bias = [added(t + before, j, h, pattern) for j in seen]
                scores = scale * k[b, seen, h // 2] @ q[b, t, h] + torch.tensor(bias).to(q.dtype)
                lses.append(scores.exp().sum().log())
                outputs.append((scores - lses[-1]).exp() @ v[b, seen, h // 2])
    shape = (2, q.shape[1], 4)
    return torch.stack(outputs).view(*shape, -1), torch.stack(lses).view(shape)


def run(backend, q, k, v, documents, pattern, lse="return"):
    given = None if documents is None else torch.tensor(documents)
    mask = AttentionMask(q.shape[1], k.shape[1], given, q.device)
    return BACKENDS[backend](
        q, k, v, mask=mask, pattern=pattern, scale=0.4, dropout=0.0, observe=observe, lse=lse
    )


@pytest.mark.parametrize("num_queries", [T, 4, 1])
@pytest.mark.parametrize("documents", DOCUMENTS.values(), ids=DOCUMENTS)
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_forward(pattern, documents, num_queries):
    q, k, v = inputs(num_queries)
    expected, lse = naive(q, k, v, documents, pattern, 0.4)
    for backend in BACKENDS:
        for wanted in ("return", "skip"):
            got = run(backend, q, k, v, documents, pattern, wanted)
            torch.testing.assert_close(got.y, expected, atol=1e-6, rtol=1e-6, msg=backend)
            if got.lse is not None:
                found = lse.to(got.lse.dtype)
                torch.testing.assert_close(got.lse, found, atol=1e-5, rtol=1e-5, msg=backend)


@pytest.mark.parametrize("documents", DOCUMENTS.values(), ids=DOCUMENTS)
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_backward(pattern, documents):
    """Of outputs and log-sum-exps together, which a learned sink needs."""
    grads = {}
    for name in ("naive", "eager", "sdpa"):
        leaves = [t.requires_grad_() for t in inputs()]
        if name == "naive":
            y, lse = naive(*leaves, documents, pattern, 0.4)
        else:
            y, lse = run(name, *leaves, documents, pattern)
        (y.square().sum() + (3 * lse).sin().sum()).backward()
        grads[name] = [leaf.grad for leaf in leaves]
    for name in ("eager", "sdpa"):
        for a, b in zip(grads[name], grads["naive"], strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)


def test_log_sum_exp_of_large_and_small_scores():
    """The null key's own score follows the query's, so that neither side runs out of range."""
    for factor in (0.01, 30.0):
        q, k, v = inputs(dtype=torch.float32)
        wide = [t.double() for t in (factor * q, k, v)]
        expected, lse = (t.float() for t in naive(*wide, None, Pattern(), 0.4))
        got = run("sdpa", factor * q, k, v, None, Pattern())
        torch.testing.assert_close(got.y, expected, atol=1e-5, rtol=1e-4)
        assert torch.isfinite(got.lse).all()
        near = lse - 0.4 * factor * (q * k.repeat_interleave(2, 2)).sum(-1) < 80
        torch.testing.assert_close(got.lse[near], lse[near], atol=1e-4, rtol=1e-5)


def test_bf16_log_sum_exp_is_near():
    q, k, v = inputs(dtype=torch.bfloat16)
    _, lse = naive(*(t.float() for t in (q, k, v)), None, Pattern(), 0.4)
    got = run("sdpa", q, k, v, None, Pattern())
    assert got.y.dtype == torch.bfloat16
    torch.testing.assert_close(got.lse, lse, atol=0.03, rtol=0)


@pytest.mark.slow
def test_flex_through_the_compiler(monkeypatch):
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    q, k, v = inputs(dtype=torch.float32)
    pattern, documents = PATTERNS["alibi in a window"], DOCUMENTS["packed and padded"]
    expected, lse = naive(q, k, v, documents, pattern, 0.4)
    got = run("flex", q, k, v, documents, pattern)
    torch.testing.assert_close(got.y, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got.lse, lse, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lse", ["return", "skip"])
@pytest.mark.parametrize("window", [1, 2, 4])
@pytest.mark.parametrize("documents", DOCUMENTS.values(), ids=DOCUMENTS)
def test_a_window_in_blocks(documents, window, lse, monkeypatch):
    """Blocks of 3 tokens and less than half a block left over; forward and gradients."""
    monkeypatch.setattr(band, "MIN_BLOCK_TOKENS", 3)
    mask, pattern = AttentionMask(T, T), Pattern(window_tokens=window)
    assert band.is_band(mask, pattern)
    results = []
    for name in ("eager", "sdpa"):
        leaves = [t.requires_grad_() for t in inputs()]
        y, sums = run(name, *leaves, documents, pattern, lse)
        total = y.square().sum()
        if lse == "return":
            total = total + sums.sin().sum()
        results.append([y, *torch.autograd.grad(total, leaves)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)


def test_patterns_that_hide_nothing_cost_no_mask():
    mask = AttentionMask(T, T)
    wide = BlockSparseConfig(block_tokens=8, local_blocks=2)
    for pattern in (Pattern(), Pattern(window_tokens=T), Pattern(blocks=wide)):
        assert mask.is_plain_causal(pattern)
    assert not mask.is_plain_causal(Pattern(window_tokens=T - 1))
    assert not mask.is_plain_causal(Pattern(alibi_slopes=SLOPES))
    assert AttentionMask(1, T).sees_everything(Pattern(window_tokens=T))
    assert AttentionMask(T, T).sees_everything(Pattern(direction="full"))


def test_flex_has_no_backward_on_a_cpu():
    leaves = [t.requires_grad_() for t in inputs()]
    with pytest.raises(NotImplementedError, match="backward on CPU"):
        run("flex", *leaves, None, Pattern())
