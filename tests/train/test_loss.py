import pytest
import torch
from torch import nn

from gatelm.data.batch import IGNORE, Batch
from gatelm.train.loss import sum_loss


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


@pytest.mark.parametrize("rows_a_chunk", [1, 4, 5, 21])
def test_chunks_change_neither_loss_nor_gradients(rows_a_chunk):
    whole, chunked = Bag(), Bag()
    sum_loss(whole, batch()).backward()
    loss = sum_loss(chunked, batch(), logit_bytes=rows_a_chunk * 4 * 11)
    loss.backward()
    torch.testing.assert_close(loss, sum_loss(whole, batch()))
    for a, b in zip(whole.parameters(), chunked.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-6)


def test_chunks_bound_the_logits_that_exist_at_once():
    model, sizes = Bag(), []
    model.head.register_forward_hook(lambda _m, _i, out: sizes.append(out.shape[0]))
    sum_loss(model, batch(), logit_bytes=5 * 4 * 11).backward()
    assert max(sizes) == 5
    assert sum(sizes) == 2 * 21


def test_bf16_logits_are_summed_in_fp32():
    model = Bag().bfloat16()
    assert sum_loss(model, batch()).dtype == torch.float32


def test_no_target_at_all_is_zero():
    data = batch()
    assert sum_loss(Bag(), Batch(data.tokens, torch.full_like(data.targets, IGNORE))) == 0
