import pytest
import torch

from gatelm.nn.attention.backends.sdpa import SdpaBackend
from gatelm.nn.attention.backends.tail import attend_tail, can_attend_tail
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.attention.pattern import Pattern

SHAPES = [
    # batch, new, all, heads, key heads, width
    (1, 3, 10, 4, 2, 8),
    (2, 1, 7, 6, 3, 16),
    (1, 70, 300, 9, 3, 64),
    (2, 33, 34, 4, 4, 8),
]


def inputs(shape, dtype=torch.float64):
    torch.manual_seed(0)
    batch, new, total, heads, key_heads, width = shape
    q = torch.randn(batch, new, heads, width, dtype=dtype)
    k = torch.randn(batch, total, key_heads, width, dtype=dtype)
    return q, k, torch.randn_like(k)


def naive(q, k, v, scale):
    """Every score written out, in float64."""
    q, k, v = q.double(), k.double(), v.double()
    group, old = q.shape[2] // k.shape[2], k.shape[1] - q.shape[1]
    k, v = (t.repeat_interleave(group, dim=2) for t in (k, v))
    scores = torch.einsum("btnh,bsnh->btns", q, k) * scale
    for t in range(q.shape[1]):
        scores[:, t, :, old + t + 1 :] = float("-inf")
    return torch.einsum("btns,bsnh->btnh", scores.softmax(-1), v), scores.logsumexp(-1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)],
)
def test_it_is_the_attention_written_out(shape, dtype, tolerance):
    q, k, v = inputs(shape, dtype)
    assert can_attend_tail(q, k, v)
    y, lse = attend_tail(q, k, v, 0.3)
    expected, expected_lse = naive(q, k, v, 0.3)
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), expected, atol=tolerance, rtol=tolerance)
    bound = max(tolerance, 1e-5)
    torch.testing.assert_close(lse.double(), expected_lse, atol=bound, rtol=bound)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_backend_takes_it_and_gives_what_its_mask_would(shape, monkeypatch):
    q, k, v = inputs(shape)
    taken = []

    def spy(*args):
        taken.append(True)
        return attend_tail(*args)

    monkeypatch.setattr("gatelm.nn.attention.backends.sdpa.attend_tail", spy)

    def run():
        mask = AttentionMask(q.shape[1], k.shape[1])
        settings = {"scale": 0.3, "dropout": 0.0, "observe": lambda name, t: t}
        return SdpaBackend()(q, k, v, mask=mask, pattern=Pattern(), **settings).y

    fast = run()
    monkeypatch.setattr("gatelm.nn.attention.backends.sdpa.can_attend_tail", lambda *args: False)
    slow = run()
    assert taken == [True]
    torch.testing.assert_close(fast, slow, atol=1e-12, rtol=1e-12)


def test_what_needs_gradients_or_is_no_tail_is_left_to_the_kernel():
    q, k, v = inputs(SHAPES[0])
    assert not can_attend_tail(q.requires_grad_(), k, v)
    with torch.no_grad():
        assert can_attend_tail(q, k, v)
    assert not can_attend_tail(k, k, v)
    window = Pattern(window_tokens=4)
    assert not AttentionMask(3, 10).is_causal_tail(window)
    assert AttentionMask(3, 4).is_causal_tail(window)
    assert not AttentionMask(3, 10, torch.zeros(1, 10, dtype=torch.long)).is_causal_tail(Pattern())


def test_short_bf16_rows_are_attended_in_float32():
    q, k, v = inputs(SHAPES[0], torch.bfloat16)
    settings = {"scale": 0.3, "dropout": 0.0, "observe": lambda name, t: t}
    y = SdpaBackend()(q, k, v, mask=AttentionMask(3, 10), pattern=Pattern(), **settings).y
    assert torch.equal(y, attend_tail(q.float(), k.float(), v.float(), 0.3)[0].bfloat16())
