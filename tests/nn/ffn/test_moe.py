"""The mixture of experts against its naive twin and transformers' blocks; its losses."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import Qwen3MoeConfig, Qwen3NextConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextSparseMoeBlock

from gatelm.config import ConfigError
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.ffn.moe import MoE, MoEConfig, grouped, has_kernel
from gatelm.nn.ffn.routing import Routing, balance_loss, router_losses
from gatelm.nn.forward_state import Context
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.optim.adamw import AdamWConfig
from gatelm.testing.moe import reference_losses, reference_moe

B, T, DIM = 2, 7, 16
VARIANTS = {
    "normalised": {},
    "softmax weights": {"weights": "softmax"},
    "one expert a token": {"top_k": 1},
    "all experts": {"top_k": 6},
    "shared": {"shared": {"ffn_dim": 12}},
    "shared without gate": {"shared": {"ffn_dim": 12, "gate": "none"}},
    "relu": {"activation": "relu"},
}


def moe(dtype: torch.dtype = torch.float64, **changes: object) -> MoE:
    cfg = MoEConfig.parse({"num_experts": 6, "top_k": 2, "ffn_dim": 8, **changes})
    module = MoE(cfg, DIM, 3).to(dtype)
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5, generator=generator)
    return module


def context(documents: torch.Tensor | None = None, routing: Routing | None = None) -> Context:
    return Context(AttentionMask(T, T, documents), torch.arange(T), routing=routing)


def inputs(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(B, T, DIM, dtype=dtype, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["loop", "kernel"])
@pytest.mark.parametrize("name", VARIANTS)
def test_equals_the_naive_twin_forward_and_backward(name: str, dtype: torch.dtype) -> None:
    module, x = moe(dtype, **VARIANTS[name]), inputs(dtype).requires_grad_()
    assert has_kernel(x, module.experts.gate_proj) == (dtype is torch.float32)
    params = dict(module.named_parameters())
    weight = inputs(dtype).flip(1)
    names = [n for n in params if n != "router.weight" or module.cfg.top_k != 1]
    leaves = [x, *(params[n] for n in names)]
    fast = module(x, context())
    slow = reference_moe(module.cfg, params, x)
    tolerance = 1e-12 if dtype is torch.float64 else 1e-4
    torch.testing.assert_close(fast, slow, rtol=tolerance, atol=tolerance)
    for ours, theirs in zip(
        torch.autograd.grad((fast * weight).sum(), leaves),
        torch.autograd.grad((slow * weight).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("padded", [False, True])
def test_losses_equal_their_definitions_forward_and_backward(padded: bool) -> None:
    module, x = moe(), inputs().requires_grad_()
    documents = torch.tensor([[-1, -1, 0, 0, 0, 1, 1], [0, 0, 0, 0, -1, -1, -1]])
    routing = Routing()
    module(x, context(documents if padded else None, routing))
    ours = router_losses(routing, routing.counts())
    theirs = reference_losses(
        module.cfg, dict(module.named_parameters()), x, documents if padded else None
    )
    leaves = [x, module.router.weight]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
        for ga, gb in zip(
            torch.autograd.grad(a, leaves, retain_graph=True),
            torch.autograd.grad(b, leaves, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(ga, gb)


def test_padding_moves_neither_the_counts_nor_the_losses() -> None:
    module, x = moe(), inputs()
    documents = torch.zeros(B, T, dtype=torch.long)
    documents[:, :3] = -1
    before, after = Routing(), Routing()
    module(x, context(documents, before))
    module(x.index_fill(1, torch.arange(3), 9.0), context(documents, after))
    assert before.layers[3].counts.sum() == B * (T - 3) * 2
    for name in ("counts", "probs", "z"):
        assert torch.equal(getattr(before.layers[3], name), getattr(after.layers[3], name))


@pytest.mark.parametrize("top_k", [1, 2, 8])
def test_a_balanced_router_costs_one(top_k: int) -> None:
    counts = torch.full((8,), 10.0 * top_k)
    assert balance_loss(counts, torch.full((8,), 10.0), top_k) == pytest.approx(1.0)


@pytest.mark.parametrize("top_k", [1, 2])
def test_a_collapsed_router_costs_experts_over_top_k(top_k: int) -> None:
    counts, probs = torch.zeros(8), torch.zeros(8)
    counts[:top_k], probs[:top_k] = 80.0, 80.0 / top_k
    assert balance_loss(counts, probs, top_k) == pytest.approx(8 / top_k)


def test_the_losses_of_parts_add_up_to_the_batchs() -> None:
    module, x = moe(), inputs()
    whole, halves = Routing(), [Routing(), Routing()]
    module(x, context(None, whole))
    for row, routing in enumerate(halves):
        module(x[row : row + 1], context(None, routing))
    counts = whole.counts()
    parts = [torch.stack(router_losses(routing, counts)) for routing in halves]
    torch.testing.assert_close(torch.stack(router_losses(whole, counts)), parts[0] + parts[1])
    own = [torch.stack(router_losses(routing, routing.counts())) for routing in halves]
    assert not torch.allclose(parts[0] + parts[1], (own[0] + own[1]) / 2)


@torch.no_grad()
def test_equals_qwen3_moe() -> None:
    for normalised in (True, False):
        theirs = Qwen3MoeSparseMoeBlock(
            Qwen3MoeConfig(
                hidden_size=DIM, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=8,
                norm_topk_prob=normalised, experts_implementation="eager",
            )
        ).eval()  # fmt: skip
        ours = moe(torch.float32, weights="normalised" if normalised else "softmax")
        _take_over(theirs, ours)
        x = inputs(torch.float32)
        torch.testing.assert_close(ours(x, context()), theirs(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_equals_qwen3_next() -> None:
    theirs = Qwen3NextSparseMoeBlock(
        Qwen3NextConfig(
            hidden_size=DIM, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=8,
            shared_expert_intermediate_size=12, experts_implementation="eager",
        )
    ).eval()  # fmt: skip
    ours = moe(torch.float32, shared={"ffn_dim": 12})
    _take_over(theirs, ours)
    for name in ("gate_proj", "up_proj", "down_proj"):
        weight = getattr(ours.shared, name).weight
        getattr(theirs.shared_expert, name).weight.copy_(weight)
    theirs.shared_expert_gate.weight.copy_(ours.shared_gate.weight)
    x = inputs(torch.float32)
    torch.testing.assert_close(ours(x, context()), theirs(x), rtol=1e-5, atol=1e-5)


def _take_over(theirs: nn.Module, ours: MoE) -> None:
    theirs.gate.weight.copy_(ours.router.weight)
    both = torch.cat((ours.experts.gate_proj, ours.experts.up_proj), dim=1)
    theirs.experts.gate_up_proj.copy_(both)
    theirs.experts.down_proj.copy_(ours.experts.down_proj)


def test_kernel_and_loop_agree_with_experts_that_get_nothing() -> None:
    x = torch.randn(9, 16, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(4, 8, 16, generator=torch.Generator().manual_seed(1))
    counts = torch.tensor([0, 6, 0, 3])
    assert has_kernel(x, weight)
    assert not has_kernel(x.double(), weight)
    kernel, loop = grouped(x, weight, counts), grouped(x.double(), weight.double(), counts)
    torch.testing.assert_close(kernel, loop.float(), rtol=1e-5, atol=1e-5)


def test_rows_that_the_kernel_cannot_read_take_the_loop() -> None:
    assert not has_kernel(torch.zeros(2, 16), torch.zeros(4, 7, 16))
    assert not has_kernel(torch.zeros(2, 7), torch.zeros(4, 16, 7))


def test_a_router_under_autocast_chooses_as_without() -> None:
    module, x = moe(torch.float32), inputs(torch.float32)
    wide, narrow = Routing(), Routing()
    y = module(x, context(None, wide))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = module(x, context(None, narrow))
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(wide.layers[3].counts, narrow.layers[3].counts)
    assert torch.equal(wide.layers[3].probs, narrow.layers[3].probs)
    torch.testing.assert_close(
        rounded.float(), y, rtol=0.05, atol=0.05 * y.detach().abs().max().item()
    )


def decoder(**ffn: object) -> Decoder:
    layer = {
        "mixer": {"num_heads": 2},
        "ffn": {"kind": "moe", "num_experts": 4, "top_k": 2, "ffn_dim": 8, **ffn},
        "gates": ["sdpa-head"],
    }
    tree = {"vocab_size": 20, "hidden_dim": 16, "num_layers": 2, "layer": layer}
    model = Decoder(ModelConfig.parse(tree))
    init_weights(model, 0)
    return model


def test_a_forward_tells_what_its_routers_did() -> None:
    model = decoder()
    tokens = torch.arange(14).view(2, 7)
    routing = Routing()
    hidden = model.hidden(tokens, routing=routing)
    assert list(routing.layers) == [0, 1]
    assert [float(c.sum()) for c in routing.counts().values()] == [28.0, 28.0]
    assert torch.equal(hidden, model.hidden(tokens))


COMPILED = """
import torch
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.nn.ffn.routing import Routing, router_losses

ffn = {"kind": "moe", "num_experts": 4, "top_k": 2, "ffn_dim": 8}
layer = {"mixer": {"num_heads": 2}, "ffn": ffn}
tree = {"vocab_size": 20, "hidden_dim": 16, "num_layers": 2, "layer": layer}
model = Decoder(ModelConfig.parse(tree))
init_weights(model, 0)
tokens = torch.arange(14).view(2, 7)
plain, compiled = Routing(), Routing()
expected = model.hidden(tokens, routing=plain)
hidden = torch.compile(model.hidden, backend="eager")(tokens, routing=compiled)
torch.testing.assert_close(hidden, expected)
for index, layer in plain.layers.items():
    assert torch.equal(layer.counts, compiled.layers[index].counts)
    torch.testing.assert_close(layer.probs, compiled.layers[index].probs)
router_losses(compiled, compiled.counts())[0].backward()
assert model.layers[0].ffn.router.weight.grad.abs().sum() > 0
"""


@pytest.mark.slow
def test_a_compiled_forward_tells_the_same() -> None:
    """In a process of its own: the compiler cannot see through the tests' shape checks."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True, timeout=300)


def test_a_checkpointed_forward_has_the_same_gradients() -> None:
    grads = []
    for checkpointed in (False, True):
        module, x, routing = moe(), inputs().requires_grad_(), Routing()
        here = context(None, routing)
        y = checkpoint(module, x, here, use_reentrant=False) if checkpointed else module(x, here)
        losses = router_losses(routing, routing.counts())
        (y.square().sum() + sum(losses)).backward()
        grads.append((x.grad, module.router.weight.grad, module.experts.up_proj.grad))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_more_choices_than_experts_are_refused() -> None:
    with pytest.raises(ConfigError, match="top_k 5 is more than num_experts 4"):
        decoder(top_k=5)


def test_down_projections_start_smaller_by_depth() -> None:
    experts = decoder(num_experts=32, ffn_dim=64).layers[0].ffn.experts
    assert experts.up_proj.std().item() == pytest.approx(0.02, rel=0.05)
    assert experts.down_proj.std().item() == pytest.approx(0.02 / 2, rel=0.05)


def test_router_and_experts_are_trained_as_matrices() -> None:
    model = decoder(shared={"ffn_dim": 8})
    groups = {g.name: g for g in AdamWConfig().parameter_groups(model.named_parameters())}
    mixture = {name for name in groups["matrices"].names if ".ffn." in name}
    assert mixture == {name for name, _ in model.named_parameters() if ".ffn." in name}
    assert groups["matrices"].weight_decay == 0.1
