import pytest
import torch
from torch import nn

from gatelm.data.batch import IGNORE, Batch
from gatelm.train import loss as loss_module
from gatelm.train.loss import _LinearCrossEntropy, linear_cross_entropy, sum_loss


class Bag(nn.Module):
    """The smallest language model: an embedding and a head."""

    def __init__(self, vocab=11, dim=6):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(vocab, dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def hidden(self, tokens, *, documents=None):
        return torch.tanh(self.embedding(tokens))

    def logits(self, hidden):
        return self.head(hidden)

    @property
    def head_weight(self):
        return self.head.weight


def batch(rows=3, length=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 11, (rows, length), generator=generator)
    targets = torch.randint(0, 11, (rows, length), generator=generator)
    targets[0, 2:] = IGNORE
    return Batch(tokens, targets)


def test_the_loss_is_a_sum_over_valid_targets():
    model, data = Bag(), batch()
    log_p = torch.log_softmax(model.logits(model.hidden(data.tokens)), -1)
    expected = -sum(
        log_p[b, t, data.targets[b, t]]
        for b in range(3)
        for t in range(7)
        if data.targets[b, t] != IGNORE
    )
    torch.testing.assert_close(sum_loss(model, data), expected)


def losses_and_gradients(loss_of, dtype, autocast):
    """Loss, and gradients in states and head, of one function."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(21, 6, generator=generator).to(dtype).requires_grad_()
    weight = (3 * torch.randn(11, 6, generator=generator)).to(dtype).requires_grad_()
    targets = torch.randint(0, 11, (21,), generator=generator)
    targets[2:7] = IGNORE
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = loss_of(hidden, weight, targets)
    return [loss.detach(), *torch.autograd.grad(0.1 * loss, (hidden, weight))]


@pytest.mark.parametrize("rows_at_once", [1, 4, 5, 21, 100])
@pytest.mark.parametrize(
    ("dtype", "autocast", "tolerance"),
    [(torch.float64, False, 1e-12), (torch.float32, False, 1e-5), (torch.float32, True, 2e-2)],
)
def test_chunks_equal_the_naive_loss_and_its_gradients(rows_at_once, dtype, autocast, tolerance):
    def chunked(hidden, weight, targets):
        return _LinearCrossEntropy.apply(hidden, weight, targets, rows_at_once)

    ours = losses_and_gradients(chunked, dtype, autocast)
    naive = losses_and_gradients(linear_cross_entropy, dtype, autocast)
    for a, b in zip(ours, naive, strict=True):
        torch.testing.assert_close(a.to(b.dtype), b, rtol=tolerance, atol=tolerance)


def test_without_gradients_chunks_change_nothing():
    model, data = Bag(), batch()
    with torch.no_grad():
        assert sum_loss(model, data, rows_at_once=4) == pytest.approx(float(sum_loss(model, data)))


def test_chunks_bound_the_logits_that_exist_at_once(monkeypatch):
    sizes = []
    inner = loss_module._chunk

    def spy(states, *rest):
        sizes.append(len(states))
        return inner(states, *rest)

    monkeypatch.setattr(loss_module, "_chunk", spy)
    sum_loss(Bag(), batch(), rows_at_once=5).backward()
    assert sizes == [5, 5, 5, 5, 1]


def test_bf16_logits_are_summed_in_fp32():
    model = Bag().bfloat16()
    assert sum_loss(model, batch()).dtype == torch.float32


def test_no_target_at_all_is_zero():
    data = batch()
    assert sum_loss(Bag(), Batch(data.tokens, torch.full_like(data.targets, IGNORE))) == 0
