import pytest
import torch
from torch import nn

from gatelm.config import ConfigError
from gatelm.optim.adamw import AdamWConfig
from gatelm.optim.groups import frozen, set_lr


class TinyGate(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.ModuleDict({"x": nn.Linear(4, 2, bias=False)})
        self.bias = nn.Parameter(torch.zeros(2, 1))


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm(4)
        self.attn = nn.Module()
        self.attn.gates = nn.ModuleDict({"sdpa": TinyGate()})
        self.attn.q = nn.Linear(4, 4, bias=False)


def named(cfg_tree=None):
    groups = AdamWConfig.parse(cfg_tree or {}).parameter_groups(Tiny().named_parameters())
    return {g.name: g for g in groups}


def test_default_groups_take_every_parameter_once():
    groups = named()
    assert {name: (g.names, g.weight_decay) for name, g in groups.items()} == {
        "gates": (("attn.gates.sdpa.proj.x.weight",), 0.1),
        "gate_biases": (("attn.gates.sdpa.bias",), 0.0),
        "vectors": (("norm.weight", "norm.bias"), 0.0),
        "embeddings": (("embedding.weight",), 0.0),
        "matrices": (("attn.q.weight",), 0.1),
    }


def test_the_first_match_wins():
    groups = named({"groups": {"mine": {"pattern": r"attn", "weight_decay": 0.5}}})
    assert groups["mine"].names == (
        "attn.gates.sdpa.bias",
        "attn.gates.sdpa.proj.x.weight",
        "attn.q.weight",
    )
    assert "gates" not in groups
    assert "matrices" not in groups


def test_an_empty_pattern_is_an_error():
    with pytest.raises(ConfigError, match=r"groups.mine.pattern: 'router' matches no parameter"):
        named({"groups": {"mine": {"pattern": "router"}}})


def test_a_shadowed_group_is_an_error_that_says_so():
    tree = {
        "groups": {"mine": {"pattern": "attn.q"}},
        "group_order": ["vectors", "matrices", "mine", "gates", "gate_biases", "embeddings"],
    }
    with pytest.raises(ConfigError, match="earlier groups"):
        named(tree)


def test_an_unmatched_parameter_is_an_error_that_names_it():
    with pytest.raises(ConfigError, match=r"'attn\.q\.weight'"):
        named({"groups": {"matrices": None}})


def test_the_optimiser_gets_every_groups_own_rate_and_decay():
    cfg = AdamWConfig.parse({"lr": 1e-2, "groups": {"gates": {"lr_scale": 0.5}}})
    optimizer = cfg.build(Tiny())
    set_lr(optimizer, 4e-3)
    rates = {g["name"]: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups}
    assert rates["gates"] == (2e-3, 0.1)
    assert rates["vectors"] == (4e-3, 0.0)


def test_one_update_matches_adamw_by_hand():
    model = Tiny()
    cfg = AdamWConfig.parse({"lr": 1e-2, "weight_decay": 0.3, "betas": [0.8, 0.9], "eps": 1e-6})
    optimizer = cfg.build(model)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    torch.manual_seed(0)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    set_lr(optimizer, 5e-3)
    optimizer.step()
    decays = {"attn.q.weight": 0.3, "attn.gates.sdpa.proj.x.weight": 0.3}
    for name, p in model.named_parameters():
        kept = before[name] * (1 - 5e-3 * decays.get(name, 0.0))
        expected = kept - 5e-3 * p.grad / (p.grad.abs() + 1e-6)
        torch.testing.assert_close(p.detach(), expected, rtol=1e-5, atol=1e-7)


def test_frozen_parameters_are_left_out():
    model = Tiny()
    model.embedding.weight.requires_grad_(False)
    names = [g["name"] for g in AdamWConfig().build(model).param_groups]
    assert "embeddings" not in names


LATER = {"groups": {name: {"train_from_step": 4} for name in ("vectors", "embeddings", "matrices")}}


def test_groups_that_wait_need_no_gradient_and_get_the_first_update_of_adamw():
    tree = {"lr": 1e-2, **LATER, "weight_decay": 0.0}
    tree["groups"] = {**tree["groups"], "gates": {"warmup_steps": 2}}
    model, plain = Tiny(), Tiny()
    plain.load_state_dict(model.state_dict())
    optimizer = AdamWConfig.parse(tree).build(model)
    waiting = {"norm.weight", "norm.bias", "embedding.weight", "attn.q.weight"}
    with frozen(optimizer, 3):
        assert {n for n, p in model.named_parameters() if not p.requires_grad} == waiting
    with frozen(optimizer, 4):
        assert all(p.requires_grad for p in model.parameters())
    assert all(p.requires_grad for p in model.parameters())

    set_lr(optimizer, 1e-2, 0)
    rates = {g["name"]: g["lr"] for g in optimizer.param_groups}
    assert rates["gates"] == 5e-3
    assert rates["matrices"] == 0.0
    model.attn.gates["sdpa"].proj["x"].weight.grad = torch.ones(2, 4)
    optimizer.step()
    assert torch.equal(model.attn.q.weight, plain.attn.q.weight)

    set_lr(optimizer, 1e-2, 4)
    reference = torch.optim.AdamW([plain.attn.q.weight], lr=1e-2, betas=(0.9, 0.95), fused=True)
    model.attn.q.weight.grad = plain.attn.q.weight.grad = torch.full((4, 4), 0.3)
    for group in reference.param_groups:
        group["weight_decay"] = 0.0
    optimizer.step()
    reference.step()
    assert torch.equal(model.attn.q.weight, plain.attn.q.weight)


def test_some_group_must_train_from_the_beginning():
    tree = {"groups": {**LATER["groups"], "gates": {"train_from_step": 9}, "gate_biases": None}}
    tree["groups"]["vectors"]["pattern"] = ".*"
    with pytest.raises(ConfigError, match="no group of this model trains before step 4"):
        AdamWConfig.parse(tree).build(Tiny())
