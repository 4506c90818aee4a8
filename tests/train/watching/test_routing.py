import pytest
import torch

from gatelm.config.load import merge
from gatelm.data.batch import IGNORE, Batch
from gatelm.data.source import build_source
from gatelm.nn.ffn.routing import Routing
from gatelm.testing.moe import reference_losses
from gatelm.train.parallel import World
from gatelm.train.setup import new_state
from gatelm.train.step import train_step
from gatelm.train.trainer import train
from gatelm.train.watching.metrics import read_metrics

ALONE = World(torch.device("cpu"))


@pytest.fixture
def experts(tiny):
    """A run config whose layers have four experts; call it with a tree to lay on."""

    def make(over=None):
        ffn = {"kind": "moe", "num_experts": 4, "top_k": 2, "ffn_dim": 8}
        return tiny(merge({"model": {"layer": {"ffn": ffn}}}, over or {}))

    return make


def padded_batch(vocab_size, rows=5):
    """Rows of 12 tokens, two documents each, with padding at their ends."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, vocab_size, (rows, 12), generator=generator)
    targets = torch.randint(0, vocab_size, (rows, 12), generator=generator)
    documents = torch.zeros(rows, 12, dtype=torch.int64)
    documents[:, 2:] = 1
    for row, count in enumerate([12, 3, 7, 2, 12][:rows]):
        targets[row, count:] = IGNORE
        documents[row, count:] = -1
    return Batch(tokens, targets, documents)


def state_of(cfg):
    return new_state(cfg, build_source(cfg.data, cfg.seed), ALONE)


def step(state, batch, cfg):
    return train_step(state, batch, lr=1e-2, grad_clip=None, cfg=cfg.train, world=ALONE)


def weights(state):
    return {n: p.detach().clone() for n, p in state.model.named_parameters()}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_step_does_not_depend_on_how_it_is_cut(experts, size):
    heavy = {"train": {"batch_size": 5, "router": {"balance": 1.0, "z": 0.1}}}
    whole, parts = experts(heavy), experts(merge(heavy, {"train": {"micro_batch_size": size}}))
    one, many = state_of(whole), state_of(parts)
    batch = padded_batch(one.model.cfg.vocab_size)
    a, b = step(one, batch, whole), step(many, batch, parts)
    assert a.routing["balance_loss"] == pytest.approx(b.routing["balance_loss"], rel=1e-5)
    assert a.routing["router_z_loss"] == pytest.approx(b.routing["router_z_loss"], rel=1e-5)
    assert a.routing["expert_load"] == b.routing["expert_load"]
    assert a.loss == pytest.approx(b.loss, rel=1e-5)
    assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-4)
    after = weights(many)
    for name, weight in weights(one).items():
        torch.testing.assert_close(weight, after[name], rtol=1e-4, atol=1e-5)


def test_what_is_minimised_has_the_routers_losses_on_top(experts):
    cfg = experts({"train": {"router": {"balance": 0.5, "z": 0.25}}})
    without = experts({"train": {"router": {"balance": 0.0, "z": 0.0}}})
    states = state_of(cfg), state_of(without)
    batch = padded_batch(states[0].model.cfg.vocab_size)
    seen = []
    for state, config in zip(states, (cfg, without), strict=True):
        state.optimizer.register_step_pre_hook(
            lambda *_, s=state: seen.append(s.model.layers[1].ffn.router.weight.grad.clone())
        )
        outcome = step(state, batch, config)
        seen.append(outcome.loss)
    model = state_of(cfg).model
    routing = Routing()
    inputs = []
    for layer in model.layers:
        layer.ffn.register_forward_pre_hook(lambda _m, args: inputs.append(args[0]))
    model.hidden(batch.tokens, documents=batch.documents, routing=routing)
    losses = [
        reference_losses(layer.ffn.cfg, dict(layer.ffn.named_parameters()), x, batch.documents)
        for layer, x in zip(model.layers, inputs, strict=True)
    ]
    balance, z = (torch.stack(each).mean() for each in zip(*losses, strict=True))
    (added,) = torch.autograd.grad(0.5 * balance + 0.25 * z, [model.layers[1].ffn.router.weight])
    assert seen[1] == seen[3]
    torch.testing.assert_close(seen[0] - seen[2], added, rtol=1e-3, atol=1e-6)


def test_counting_first_draws_no_random_numbers(experts):
    over = {"model": {"layer": {"residual_dropout": 0.5}}, "train": {"batch_size": 5}}
    cfg = experts(merge(over, {"train": {"micro_batch_size": 2}}))
    state = state_of(cfg)
    chosen = []
    state.model.layers[0].register_forward_hook(lambda _m, _i, out: chosen.append(out.detach()))
    torch.manual_seed(3)
    step(state, padded_batch(state.model.cfg.vocab_size), cfg)
    assert len(chosen) == 6
    for counted, trained in zip(chosen[:3], chosen[3:], strict=True):
        assert torch.equal(counted, trained)


def test_a_dense_model_ignores_the_losses_weights(tiny):
    plain, weighted = tiny(), tiny({"train": {"router": {"balance": 3.0}}})
    one, other = state_of(plain), state_of(weighted)
    batch = padded_batch(one.model.cfg.vocab_size)
    a, b = step(one, batch, plain), step(other, batch, weighted)
    assert a.routing is None
    assert (a.loss, a.grad_norm) == (b.loss, b.grad_norm)
    assert plain.content_hash() == tiny({"train": {"router": {}}}).content_hash()


def test_the_log_has_every_experts_load(experts, tmp_path, fake_analysis):
    cfg = experts({"train": {"total_steps": 2}})
    train(cfg, tmp_path / "run")
    records = list(read_metrics(tmp_path / "run" / "metrics.jsonl", "train"))
    assert len(records) == 2
    for record in records:
        assert sorted(record["expert_load"]) == ["0", "1"]
        assert all(
            sum(load) == pytest.approx(1, abs=1e-4) for load in record["expert_load"].values()
        )
        assert 0.5 < record["balance_loss"] < 2
        assert record["router_z_loss"] > 0
