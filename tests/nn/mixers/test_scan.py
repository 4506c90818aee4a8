"""The chunked scan against its recurrence, forward and gradients."""

from __future__ import annotations

import pytest
import torch

from gatelm.nn.mixers.scan import scan, scan_flops_per_token
from gatelm.testing.linear import reference_scan

HEADS = {"queries share keys": (4, 2, 2), "values share keys": (1, 1, 3), "own": (2, 2, 2)}


def inputs(batch: int, length: int, heads: tuple[int, int, int]) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    return {
        "q": draw(batch, length, heads[0], 5).requires_grad_(),
        "k": draw(batch, length, heads[1], 5).requires_grad_(),
        "v": draw(batch, length, heads[2], 3).requires_grad_(),
        # some tokens forget nearly everything
        "log_decay": (-(2 * draw(batch, length, heads[2])).exp()).requires_grad_(),
    }


def naive(q, k, v, log_decay, starts, state):
    num_outputs = max(q.shape[2], v.shape[2])
    outputs, states = [], {}
    for b in range(q.shape[0]):
        begins = [False] * q.shape[1] if starts is None else starts[b].tolist()
        for h in range(num_outputs):
            i, j, n = (h * t.shape[2] // num_outputs for t in (q, k, v))
            first = q.new_zeros(q.shape[3], v.shape[3]) if state is None else state[b, n]
            decay = torch.zeros_like(v[b, :, n, 0]) if log_decay is None else log_decay[b, :, n]
            y, states[b, n] = reference_scan(
                q[b, :, i], k[b, :, j], v[b, :, n], decay, begins, first
            )
            outputs.append(y)
    y = torch.stack(outputs).unflatten(0, (q.shape[0], num_outputs)).transpose(1, 2)
    last = torch.stack([states[key] for key in sorted(states)])
    return y, last.unflatten(0, (q.shape[0], v.shape[2]))


@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("length", [1, 63, 64, 65, 130])
@pytest.mark.parametrize("case", ["plain", "state", "documents", "documents and state"])
@pytest.mark.parametrize("decaying", [False, True])
def test_chunked_scan_equals_the_recurrence(
    heads: tuple[int, int, int], length: int, case: str, decaying: bool
) -> None:
    given: dict[str, torch.Tensor | None] = {**inputs(2, length, heads)}
    if not decaying:
        given["log_decay"] = None
    starts = state = None
    if "documents" in case:
        starts = torch.rand(2, length, generator=torch.Generator().manual_seed(3)) < 0.1
    if "state" in case:
        state = torch.randn(2, heads[2], 5, 3, dtype=torch.float64, requires_grad=True)
    leaves = [t for t in (*given.values(), state) if t is not None]
    results = []
    for form in (scan, naive):
        y, last = form(**given, starts=starts, state=state)
        loss = y.square().sum() + last.sin().sum()
        grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        results.append([y, last, *grads])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


def test_a_strong_decay_does_not_cancel_the_digits_of_others() -> None:
    given = {k: t.detach().float() for k, t in inputs(1, 64, (2, 2, 2)).items()}
    given["log_decay"] = torch.full_like(given["log_decay"], -1e-3)
    given["log_decay"][:, 5] = -3e4
    y, _ = scan(**given, starts=None, state=None)
    exact, _ = naive(**{k: t.double() for k, t in given.items()}, starts=None, state=None)
    torch.testing.assert_close(y.double(), exact, atol=2e-5, rtol=0)


def test_sixteen_bit_inputs_are_summed_in_float32() -> None:
    given = {k: t.detach().bfloat16() for k, t in inputs(1, 200, (2, 2, 2)).items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = scan(**given, starts=None, state=None)
    exact, _ = naive(**{k: t.double() for k, t in given.items()}, starts=None, state=None)
    assert y.dtype == state.dtype == torch.float32
    torch.testing.assert_close(y.double(), exact, atol=1e-4, rtol=1e-4)


def test_cost_of_a_token_does_not_grow_with_the_text() -> None:
    heads = (4, 2, 2)
    short, long = (scan_flops_per_token(t, heads, 16, 16) for t in (64, 65_536))
    assert short == long > scan_flops_per_token(8, heads, 16, 16)
