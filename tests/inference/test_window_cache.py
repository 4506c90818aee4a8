import pytest
import torch

from gatelm.analysis.probe.protocol import AttentionCall
from gatelm.analysis.probe.rotation import Rotation
from gatelm.inference.window_cache import WindowCache
from gatelm.nn.attention.masks import AttentionMask


def attend(q, k, v, *, first_tokens, window_tokens, chunk_tokens=4, **settings):
    """All outputs (T,N,H) and lse (T,N) of a text in chunks."""
    cache = WindowCache({0: Rotation()}, first_tokens, window_tokens)
    heads, lse = [], []
    for start in range(0, q.shape[1], chunk_tokens):
        part = slice(start, start + chunk_tokens)
        num = q[:, part].shape[1]
        call = AttentionCall(
            0, q[:, part], k[:, part], v[:, part], AttentionMask(num, num), 1.0, **settings
        )
        outputs = cache.attend(call)
        cache.commit(num)
        heads.append(outputs[0][0])
        lse.append(outputs[1][0])
    return torch.cat(heads), torch.cat(lse)


def values(num_tokens=20):
    return torch.arange(num_tokens, dtype=torch.float32).reshape(1, -1, 1, 1)


@pytest.mark.parametrize(("first_tokens", "window_tokens"), [(0, 5), (1, 5), (4, 3), (6, 1)])
def test_equal_scores_give_the_mean_of_the_cache(first_tokens, window_tokens):
    zero = torch.zeros(1, 20, 1, 1)
    heads, lse = attend(
        zero, zero, values(), first_tokens=first_tokens, window_tokens=window_tokens
    )
    for i in range(20):
        cached = {*range(min(first_tokens, i + 1)), *range(max(0, i - window_tokens + 1), i + 1)}
        assert float(heads[i]) == pytest.approx(sum(cached) / len(cached), rel=1e-6)
        assert float(lse[i].exp()) == pytest.approx(len(cached), rel=1e-6)


def test_a_sink_holds_only_while_it_is_in_the_cache():
    """All weight is on token 0; once it is evicted the window is averaged."""
    q, k = torch.ones(1, 20, 1, 1), torch.zeros(1, 20, 1, 1)
    k[0, 0] = 60.0
    kept, _ = attend(q, k, values(), first_tokens=1, window_tokens=5)
    torch.testing.assert_close(kept.flatten(), torch.zeros(20), atol=1e-6, rtol=0)
    evicted, _ = attend(q, k, values(), first_tokens=0, window_tokens=5)
    torch.testing.assert_close(evicted.flatten()[:5], torch.zeros(5), atol=1e-6, rtol=0)
    torch.testing.assert_close(evicted.flatten()[5:], torch.arange(3.0, 18.0))


def test_a_learned_sink_takes_weight_but_no_part_of_the_log_sum_exp():
    zero = torch.zeros(1, 20, 1, 1)
    heads, lse = attend(
        zero, zero, values(), first_tokens=0, window_tokens=4, sink_logits=torch.tensor([0.0])
    )
    assert float(heads[10]) == pytest.approx((7 + 8 + 9 + 10) / 5)
    assert float(lse[10].exp()) == pytest.approx(4)


def test_a_cap_bounds_the_scores():
    q, k = torch.ones(1, 20, 1, 1), torch.zeros(1, 20, 1, 1)
    k[0, 0] = 60.0
    heads, _ = attend(q, k, values(), first_tokens=1, window_tokens=3, softcap=1.0)
    weight = torch.tensor(1.0).exp()
    assert float(heads[10]) == pytest.approx(float((8 + 9 + 10) / (weight + 3)), rel=1e-6)
