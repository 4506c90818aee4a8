import pytest
import torch
from torch import nn

from gatelm.hf.probe import attention
from gatelm.hf.probe.attention import Seen, attend, attention_that_shows, showing, window_of
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.attention.pattern import Pattern
from gatelm.testing.statistics import naive_weights


def heads(seed=0, tokens=19, num_heads=4, kv_heads=2):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(2, num_heads, tokens, 8, generator=generator)
    k = torch.randn(2, kv_heads, tokens, 8, generator=generator)
    v = torch.randn(2, kv_heads, tokens, 6, generator=generator)
    return q, k, v


def naive(q, k, v, **settings):
    mask = AttentionMask(q.shape[2], q.shape[2])
    weights = naive_weights(q.transpose(1, 2), k.transpose(1, 2), mask, **settings)[1]
    values = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    return (weights @ values).transpose(1, 2)


SINKS = torch.tensor([0.0, -1.0, 2.0, 0.5])


@pytest.mark.parametrize("block_elements", [1, 500, 1 << 20])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize(("softcap", "sinks"), [(1.5, None), (None, SINKS), (1.5, SINKS)])
def test_capped_attention_with_sinks_equals_the_naive_one(
    softcap, sinks, window, block_elements, monkeypatch
):
    monkeypatch.setattr(attention, "BLOCK_ELEMENTS", block_elements)
    q, k, v = heads()
    mask = None if window is None else AttentionMask(19, 19).dense(Pattern(window))
    seen = Seen(nn.Identity(), q, k, v, mask, True, 0.4, softcap, sinks, False)
    expected = naive(q, k, v, scale=0.4, window_tokens=window, softcap=softcap, sink_logits=sinks)
    torch.testing.assert_close(attend(seen), expected, atol=1e-5, rtol=1e-5)


def test_without_a_cap_the_librarys_kernel_is_used_and_listeners_see_the_call():
    q, k, v = heads()
    module = nn.Identity()
    module.num_key_value_groups = 2
    calls, outputs = [], []
    with showing(calls.append, lambda seen, output: outputs.append(output)):
        result, weights = attention_that_shows(module, q, k, v, None, scaling=0.4)
    assert weights is None
    torch.testing.assert_close(result, naive(q, k, v, scale=0.4), atol=1e-5, rtol=1e-5)
    assert calls[0].q is q
    assert calls[0].module is module
    assert (calls[0].scale, calls[0].causal, calls[0].has_bias) == (0.4, True, False)
    assert outputs[0] is result
    attention_that_shows(module, q, k, v, None)
    assert len(calls) == 1


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_a_listener_can_replace_the_values(softcap):
    q, k, v = heads()
    module = nn.Identity()
    module.num_key_value_groups = 2
    with showing(lambda seen: seen.v * 2, lambda seen, output: None):
        result, _ = attention_that_shows(module, q, k, v, None, softcap=softcap)
    expected = 2 * naive(q, k, v, scale=8**-0.5, softcap=softcap)
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("block_elements", [1, 1 << 20])
@pytest.mark.parametrize("window", [1, 4, 12])
def test_windows_are_recognised(window, block_elements, monkeypatch):
    monkeypatch.setattr(attention, "BLOCK_ELEMENTS", block_elements)
    assert window_of(AttentionMask(12, 12).dense(Pattern(window))) == window


def test_other_masks_are_no_windows():
    causal = AttentionMask(12, 12).dense(Pattern())
    chunked = causal & (torch.arange(12)[:, None] // 5 == torch.arange(12) // 5)
    assert window_of(chunked) is None
    holes = causal.clone()
    holes[..., 7, 3] = False
    assert window_of(holes) is None
    assert window_of(torch.ones(1, 1, 12, 12, dtype=torch.bool)) is None
    assert window_of(causal[..., 6:, :]) is None
    one_of_two = torch.cat((causal, holes))
    assert window_of(one_of_two) is None
