"""Gated DeltaNet against its naive twin, forward and gradients, and against transformers."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from gatelm.config import ConfigError
from gatelm.nn.block import LayerConfig
from gatelm.nn.check import check_layer
from gatelm.nn.init import init_weights
from gatelm.nn.mixers import delta_rule as rules
from gatelm.nn.mixers.delta import GatedDelta
from gatelm.nn.mixers.delta_rule import delta_rule, fla_delta_rule
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.testing.delta import reference_delta, reference_delta_rule

D = 12


def inputs(batch: int, length: int, key_heads: int = 1, heads: int = 2, seed: int = 0) -> dict:
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    q, k = draw(batch, length, key_heads, 5), draw(batch, length, key_heads, 5)
    return {
        "q": (q / q.norm(dim=-1, keepdim=True)).requires_grad_(),
        "k": (k / k.norm(dim=-1, keepdim=True)).requires_grad_(),
        "v": draw(batch, length, heads, 3).requires_grad_(),
        # some tokens forget nearly everything
        "log_decay": (-(2 * draw(batch, length, heads)).exp()).requires_grad_(),
        "beta": draw(batch, length, heads).sigmoid().requires_grad_(),
    }


def naive(q, k, v, log_decay, beta, starts, state):
    heads, states = [], []
    for b in range(q.shape[0]):
        begins = [False] * q.shape[1] if starts is None else starts[b].tolist()
        for h in range(v.shape[2]):
            g = h * q.shape[2] // v.shape[2]
            first = q.new_zeros(q.shape[3], v.shape[3]) if state is None else state[b, h]
            y, last = reference_delta_rule(
                q[b, :, g], k[b, :, g], v[b, :, h], log_decay[b, :, h], beta[b, :, h], begins, first
            )
            heads.append(y)
            states.append(last)
    shape = (q.shape[0], v.shape[2])
    return torch.stack(heads).unflatten(0, shape).transpose(1, 2), torch.stack(states).unflatten(
        0, shape
    )


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 130])
@pytest.mark.parametrize("case", ["plain", "state", "documents", "documents and state"])
def test_chunked_rule_equals_the_recurrence(length: int, case: str) -> None:
    given = inputs(2, length)
    starts = state = None
    if "documents" in case:
        starts = torch.rand(2, length, generator=torch.Generator().manual_seed(3)) < 0.1
    if "state" in case:
        state = torch.randn(2, 2, 5, 3, dtype=torch.float64, requires_grad=True)
    results = []
    for rule in (delta_rule, naive):
        y, last = rule(**given, starts=starts, state=state)
        leaves = [*given.values(), *([] if state is None else [state])]
        loss = y.square().sum() + last.sin().sum()
        grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
        results.append([y, last, *grads])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


def test_a_strong_decay_does_not_cancel_the_digits_of_others() -> None:
    given = {k: t.detach().float() for k, t in inputs(1, 64).items()}
    given["log_decay"] = torch.full_like(given["log_decay"], -1e-3)
    given["log_decay"][:, 5] = -3e4
    y, _ = delta_rule(**given, starts=None, state=None)
    exact, _ = naive(**{k: t.double() for k, t in given.items()}, starts=None, state=None)
    torch.testing.assert_close(y.double(), exact, atol=3e-6, rtol=0)


def test_sequences_for_the_kernels_are_the_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels themselves run on CUDA only; here their contract is written out naively."""

    def kernel(q, k, v, g, beta, *, scale, initial_state, output_final_state, cu_seqlens=None, **_):
        assert scale == 1.0
        assert output_final_state
        if cu_seqlens is None:
            return naive(q, k, v, g, beta, None, initial_state)
        parts = []
        bounds = cu_seqlens.tolist()
        for number, (a, b) in enumerate(itertools.pairwise(bounds)):
            rows = (t[:, a:b] for t in (q, k, v, g, beta))
            parts.append(naive(*rows, None, initial_state[number : number + 1].to(q.dtype)))
        return torch.cat([y for y, _ in parts], 1), torch.cat([s for _, s in parts])

    monkeypatch.setattr(rules, "fla_kernel", lambda: kernel)
    given = {k: t.detach() for k, t in inputs(3, 30).items()}
    state = torch.randn(3, 2, 5, 3, dtype=torch.float64)
    starts = torch.zeros(3, 30, dtype=torch.bool)
    starts[0, 7], starts[1, 0], starts[1, 29], starts[2, 12:14] = True, True, True, True
    for begins in (None, starts):
        for first in (None, state):
            fast = fla_delta_rule(**given, starts=begins, state=first)
            for a, b in zip(fast, delta_rule(**given, starts=begins, state=first), strict=True):
                # the kernels take log decays in float32
                torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-5)


def layer(gates: list, **mixer: object) -> LayerConfig:
    tree = {"mixer": {"kind": "delta", "num_heads": 4, **mixer}, "ffn": {"ffn_dim": 8}}
    cfg = LayerConfig.parse({**tree, "gates": gates})
    check_layer(cfg, D, 0)
    return cfg


CASES = {
    "plain": layer([]),
    "grouped": layer(["sdpa-silu-gate"], num_key_heads=2, head_dim=5, value_dim=3),
    "no norm": layer(["sdpa-element"], out_norm=None, conv_tokens=1),
    "all sites": layer(
        [
            {"site": "q", "inputs": ["resid"]},
            "key",
            "value-head",
            "scores-q",
            {"site": "k_rot", "activation": "two_sigmoid"},
            {"site": "sdpa", "sharing": "per_kv_group"},
            {"site": "out", "inputs": ["q", "y"], "rank": 2},
        ],
        num_key_heads=2,
        conv_tokens=3,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("with_documents", [False, True])
def test_mixer_equals_the_naive_twin(
    name: str, with_documents: bool, assert_equals_twin: Callable[..., None]
) -> None:
    assert_equals_twin(CASES[name], D, reference_delta, with_documents)


def test_start_of_the_decays_and_the_convolution() -> None:
    tree = {"kind": "delta", "num_heads": 64, "head_dim": 2}
    cfg = {"vocab_size": 5, "hidden_dim": D, "num_layers": 1}
    cfg = ModelConfig.parse({**cfg, "layer": {"mixer": tree, "ffn": {"ffn_dim": 8}}})
    model = Decoder(cfg)
    init_weights(model, 3)
    mixer = model.layers[0].attn
    assert isinstance(mixer, GatedDelta)
    rate, step = mixer.A_log.exp(), torch.nn.functional.softplus(mixer.dt_bias)
    assert 1 <= rate.min() < 3 < 12 < rate.max() <= 16
    assert 0.0009 < step.min() < 0.003 < 0.03 < step.max() <= 0.1001
    assert 0.45 < mixer.conv.weight.abs().max() <= 0.5
    again = Decoder(cfg)
    init_weights(again, 3)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("mixer", "gates", "sentence"),
    [
        ({"num_heads": 5}, [], "not a multiple of 5 heads"),
        ({"num_key_heads": 3}, [], "cannot be divided among 3 heads of keys"),
        ({}, ["learned-sink"], "lse is of softmax attention"),
    ],
)
def test_what_cannot_work_is_refused(mixer: dict, gates: list, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        layer(gates, **mixer)


def test_unknown_keys_of_the_mixer_are_named() -> None:
    with pytest.raises(ConfigError, match=r"mixer.*unknown key 'num_kv_heads'"):
        layer([], num_kv_heads=2)


def test_chunks_keep_more_digits_than_those_of_transformers() -> None:
    """Strong decays, as transformers starts with: against float64, and against its recurrence."""
    module = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 192, 8, 16, generator=g) for _ in range(3))
    q, k = (t / t.norm(dim=-1, keepdim=True) for t in (q, k))
    rate = 0.01 + 16 * torch.rand(8, generator=g)
    decay = -rate * torch.nn.functional.softplus(1.5 * torch.randn(2, 192, 8, generator=g) + 1)
    beta = torch.randn(2, 192, 8, generator=g).sigmoid()
    given = (q * 0.25, k, v, decay, beta)
    exact, _ = delta_rule(*(t.double() for t in given), None, None)
    ours, _ = delta_rule(*given, None, None)
    settings = {"g": decay, "beta": beta, "initial_state": None, "output_final_state": False}
    recurrent, _ = module.torch_recurrent_gated_delta_rule(q, k, v, **settings)
    chunked, _ = module.torch_chunk_gated_delta_rule(q, k, v, **settings)
    scale = exact.abs().max()
    errors = [((y - exact).abs().max() / scale).item() for y in (ours, recurrent, chunked)]
    assert errors[0] < 5e-7
    assert errors[1] < 5e-7
    assert errors[0] < errors[2] < 5e-5
