import copy
import math

import pytest
import torch
from torch.nn import functional as F

from gatelm.data.batch import IGNORE, Batch
from gatelm.data.source import build_source
from gatelm.train.parallel import World
from gatelm.train.setup import new_state
from gatelm.train.step import judge, micro_batches, train_step

ALONE = World(torch.device("cpu"))


def unequal_batch(vocab_size):
    """Rows with 12, 3, 7, 1 and 12 targets, two documents each, padding at their ends."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, vocab_size, (5, 12), generator=generator)
    targets = torch.randint(0, vocab_size, (5, 12), generator=generator)
    documents = torch.zeros(5, 12, dtype=torch.int64)
    documents[:, 2:] = 1
    for row, count in enumerate([12, 3, 7, 1, 12]):
        targets[row, count:] = IGNORE
        documents[row, count:] = -1
    return Batch(tokens, targets, documents)


def state_of(cfg):
    return new_state(cfg, build_source(cfg.data, cfg.seed), ALONE)


def step(state, batch, cfg, *, lr=1e-2, grad_clip=None):
    return train_step(state, batch, lr=lr, grad_clip=grad_clip, cfg=cfg.train, world=ALONE)


def weights(state):
    return {n: p.detach().clone() for n, p in state.model.named_parameters()}


def test_the_loss_is_the_mean_over_the_steps_targets(tiny):
    cfg = tiny()
    state = state_of(cfg)
    batch = unequal_batch(state.model.cfg.vocab_size)
    logits = state.model(batch.tokens, documents=batch.documents)
    expected = F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE)
    outcome = step(state, batch, cfg)
    assert outcome.loss == pytest.approx(expected.item(), rel=1e-5)
    assert outcome.tokens == 12 + 3 + 7 + 1 + 12


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_micro_batches_of_unequal_targets_equal_one_batch(tiny, size):
    whole, parts = tiny(), tiny({"train": {"batch_size": 5, "micro_batch_size": size}})
    one, many = state_of(whole), state_of(parts)
    batch = unequal_batch(one.model.cfg.vocab_size)
    a, b = step(one, batch, whole), step(many, batch, parts)
    assert a.loss == pytest.approx(b.loss, rel=1e-5)
    assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-4)
    after = weights(many)
    for name, weight in weights(one).items():
        torch.testing.assert_close(weight, after[name], rtol=1e-4, atol=1e-5)


def test_micro_batches_cover_every_row_once():
    batch = unequal_batch(7)
    parts = list(micro_batches(batch, 2))
    assert [len(p) for p in parts] == [2, 2, 1]
    assert torch.equal(torch.cat([p.tokens for p in parts]), batch.tokens)


def test_clipping_scales_the_gradient_to_its_limit(tiny):
    cfg = tiny()
    state = state_of(cfg)
    batch = unequal_batch(state.model.cfg.vocab_size)
    seen = {}
    state.optimizer.register_step_pre_hook(
        lambda *_: seen.update(norm=sum(p.grad.square().sum() for p in state.model.parameters()))
    )
    outcome = step(state, batch, cfg, grad_clip=0.01)
    assert outcome.grad_norm > 0.01
    assert float(seen["norm"]) ** 0.5 == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("policy", ["off", "log", "skip"])
def test_a_non_finite_loss_updates_nothing(tiny, policy):
    cfg = tiny({"train": {"spike_policy": policy}})
    state = state_of(cfg)
    with torch.no_grad():
        state.model.layers[0].attn_norm.weight[0] = math.nan
    before, moments = weights(state), copy.deepcopy(state.optimizer.state_dict()["state"])
    outcome = step(state, unequal_batch(state.model.cfg.vocab_size), cfg)
    assert outcome.status == ("skipped" if policy == "skip" else "diverged")
    assert "loss nan" in outcome.spike
    assert state.step == (1 if policy == "skip" else 0)
    after = weights(state)
    assert all(torch.equal(before[n], after[n]) or n.endswith("attn_norm.weight") for n in before)
    assert state.optimizer.state_dict()["state"] == moments


def feed(state, cfg, values):
    return [judge(state, v, 1.0 + 0.01 * i % 0.03, cfg.train)[0] for i, v in enumerate(values)]


def spiky(tiny, policy, **train):
    cfg = tiny({"train": {"spike_policy": policy, "spike_window_steps": 4, **train}})
    return state_of(cfg), cfg


CALM = [3.0, 3.1, 2.9, 3.0]


def test_log_accepts_spikes_and_skip_does_not(tiny):
    state, cfg = spiky(tiny, "log")
    assert feed(state, cfg, [*CALM, 50.0, 3.0]) == ["updated"] * 6
    assert state.loss_spikes.spikes == 1
    assert 50.0 in state.loss_spikes.window
    state, cfg = spiky(tiny, "skip")
    assert feed(state, cfg, [*CALM, 50.0, 3.0]) == ["updated"] * 4 + ["skipped", "updated"]
    assert 50.0 not in state.loss_spikes.window


def test_one_nan_does_not_cause_a_storm_of_skips(tiny):
    state, cfg = spiky(tiny, "skip")
    values = [*CALM, math.nan, *CALM, *CALM]
    assert feed(state, cfg, values).count("skipped") == 1


def test_too_many_skips_in_a_row_are_a_divergence(tiny):
    state, cfg = spiky(tiny, "skip", max_skipped_steps=3)
    outcomes = feed(state, cfg, [*CALM, 50.0, 50.0, 3.0, 50.0, math.nan, 50.0, 50.0])
    assert outcomes[4:] == ["skipped", "skipped", "updated"] + ["skipped"] * 3 + ["diverged"]


def test_off_watches_nothing_but_finiteness(tiny):
    state, cfg = spiky(tiny, "off")
    assert feed(state, cfg, [*CALM, 500.0, math.inf]) == ["updated"] * 5 + ["diverged"]
    assert state.loss_spikes.seen == 0


def test_bf16_computes_in_bf16_and_keeps_fp32_weights(tiny):
    cfg = tiny({"train": {"precision": "bf16"}})
    state, dtypes = state_of(cfg), set()
    state.model.layers[0].ffn.register_forward_hook(lambda _m, _i, out: dtypes.add(out.dtype))
    outcome = step(state, unequal_batch(state.model.cfg.vocab_size), cfg)
    assert dtypes == {torch.bfloat16}
    assert {p.dtype for p in state.model.parameters()} == {torch.float32}
    exact = tiny()
    other = step(state_of(exact), unequal_batch(state.model.cfg.vocab_size), exact)
    assert outcome.loss == pytest.approx(other.loss, rel=1e-2)
