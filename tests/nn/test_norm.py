"""Norms: the hand-written gradient against torch's, and the numbers' types."""

from __future__ import annotations

import pytest
import torch

from gatelm.nn.norm import Norm, NormConfig, rms_norm


def norm(dim: int, **cfg: object) -> Norm:
    module = Norm(NormConfig.parse(cfg), dim)
    with torch.no_grad():
        if module.weight is not None:
            module.weight.copy_(torch.randn(dim, generator=torch.Generator().manual_seed(0)))
    return module


@pytest.mark.parametrize("weight", ["plain", "zero_centred"])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4, 6)])
def test_cpu_rms_norm_equals_torchs(weight: str, shape: tuple[int, ...]) -> None:
    module = norm(shape[-1], weight=weight).double()
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(shape, dtype=torch.float64)
    assert module.weight is not None
    leaves = [x, module.weight]
    applied = 1 + module.weight if weight == "zero_centred" else module.weight
    naive = rms_norm(x, applied, module.cfg.eps)
    ours = module(x)
    torch.testing.assert_close(ours, naive, atol=1e-12, rtol=1e-12)
    for a, b in zip(
        torch.autograd.grad((ours * upstream).sum(), leaves),
        torch.autograd.grad((naive * upstream).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm"])
@pytest.mark.parametrize("weight", ["plain", "none"])
def test_bf16_is_normed_in_fp32(kind: str, weight: str) -> None:
    module = norm(64, kind=kind, weight=weight)
    x = (100 * torch.randn(5, 64)).bfloat16()
    y = module(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, module(x.float()).bfloat16())


def test_zeros_stay_finite() -> None:
    module = norm(8)
    x = torch.zeros(2, 8, requires_grad=True)
    module(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm"])
def test_gate_and_factor_before_the_norm_by_their_formulas(kind: str) -> None:
    module = norm(6, kind=kind, gate={"rank": 3}, pre_affine="vector").double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    named = dict(module.named_parameters())
    scaled = x * named["pre"]
    if kind == "layernorm":
        scaled = scaled - scaled.mean(dim=-1, keepdim=True)
    y = scaled / (scaled.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt() * named["weight"]
    inner = y @ named["gate.down.weight"].T
    inner = inner / (1 + torch.exp(-inner))
    naive = y / (1 + torch.exp(-inner @ named["gate.up.weight"].T))
    ours = module(x)
    leaves = [x, *named.values()]
    torch.testing.assert_close(ours, naive, atol=1e-12, rtol=1e-12)
    for a, b in zip(
        torch.autograd.grad(ours.square().sum(), leaves),
        torch.autograd.grad(naive.square().sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)


def test_optional_parts_leave_the_norm_as_it_was_and_its_hash() -> None:
    plain, more = norm(5), norm(5, pre_affine="vector")
    more.reset_parameters()
    plain.reset_parameters()
    x = torch.randn(3, 5)
    torch.testing.assert_close(plain(x), more(x))
    assert NormConfig().content_hash() == NormConfig.parse({"gate": None}).content_hash()
    assert NormConfig().content_hash() != more.cfg.content_hash()
    assert NormConfig.parse({"gate": {"rank": 2}, "pre_affine": "vector"}).num_weights(10) == 60
