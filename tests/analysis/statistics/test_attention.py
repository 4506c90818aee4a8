import math

import pytest
import torch

from gatelm.analysis.statistics.attention import AttentionTotals
from gatelm.analysis.statistics.streaming import attention_rows
from gatelm.nn.attention.masks import AttentionMask
from gatelm.testing.statistics import naive_weights


def harmonic(n):
    return math.fsum(1 / i for i in range(1, n + 1))


def random_qk(batch=3, tokens=40, heads=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, tokens, heads, 4, generator=generator)
    return q, torch.randn(batch, tokens, heads, 4, generator=generator)


def totals_of(q, k, mask, marks=None, thresholds=(0.3,), **settings):
    totals = AttentionTotals(q.shape[2], thresholds)
    totals.add(attention_rows(q, k, mask, scale=1.0, **settings), marks or {})
    return totals


@pytest.mark.parametrize("num_tokens", [2, 17, 64])
def test_zero_queries_attend_uniformly(num_tokens):
    q, k = random_qk(tokens=num_tokens)
    totals = totals_of(q * 0, k, AttentionMask(num_tokens, num_tokens))
    expected = (harmonic(num_tokens) - 1) / (num_tokens - 1)
    torch.testing.assert_close(totals.share(), torch.full((2,), expected).double())
    assert totals.uniform_share() == pytest.approx(expected)
    entropy = math.fsum(math.log(i) for i in range(2, num_tokens + 1)) / (num_tokens - 1)
    torch.testing.assert_close(totals.mean("entropy"), torch.full((2,), entropy).double())
    torch.testing.assert_close(totals.mean("normalized_entropy"), torch.ones(2).double())
    torch.testing.assert_close(totals.max_logit, torch.zeros(2).double())


def test_uniform_share_of_a_window_counts_only_queries_that_reach_the_first_token():
    q, k = random_qk(tokens=40)
    totals = totals_of(q * 0, k, AttentionMask(40, 40), window_tokens=8)
    expected = (harmonic(8) - 1) / 7
    torch.testing.assert_close(totals.share(), torch.full((2,), expected).double())
    assert totals.uniform_share() == pytest.approx(expected)
    assert float(totals.mean("coverage")[0]) == pytest.approx(7 / 39)


def test_share_by_mark_is_over_marked_queries_only():
    q, k = random_qk()
    mask = AttentionMask(40, 40)
    mark = torch.rand(3, 40, generator=torch.Generator().manual_seed(1)) < 0.3
    mark[:, 0] = True
    totals = totals_of(q, k, mask, {"trigger": mark})
    weights = naive_weights(q, k, mask, scale=1.0)[1][..., 0]
    mark[:, 0] = False
    for head in range(2):
        expected = float(weights[:, head][mark].mean())
        assert float(totals.share("trigger")[head]) == pytest.approx(expected, rel=1e-5)
    counts = torch.arange(1, 41).expand(3, 40)[mark]
    assert totals.uniform_share("trigger") == pytest.approx(float((1 / counts).mean()))


def test_sink_rate_takes_the_indicator_before_the_mean():
    """One document in three has a full sink, so the rate is a third though the mean is below 0.5.

    Its importance is exactly 1, which is not above a threshold of 1.
    """
    q = torch.ones(3, 32, 1, 1)
    k = torch.zeros(3, 32, 1, 1)
    k[0, 0] = 50.0
    totals = totals_of(q, k, AttentionMask(32, 32), thresholds=(0.5, 0.05, 1.0))
    assert float(totals.sink_rate(1.0)[0]) == 0.0
    assert float(totals.sink_rate(0.5)[0]) == pytest.approx(1 / 3)
    assert float(totals.sink_rate(0.05)[0]) == 1.0
    assert float(totals.sink_rate_any(0.5)) == pytest.approx(1 / 3)


def test_a_sink_at_another_key_is_found():
    q = torch.ones(1, 48, 1, 1)
    k = torch.zeros(1, 48, 1, 1)
    k[0, 4] = 50.0
    totals = totals_of(q, k, AttentionMask(48, 48))
    rates = totals.sink_rate(0.3)[:, 0].tolist()
    assert rates == [0.0] * 4 + [1.0] + [0.0] * 5
    assert float(totals.sink_rate_any(0.3)) == 1.0
    assert float(totals.mean("importance")[4, 0]) == pytest.approx(1.0)


def test_late_keys_and_short_documents_are_no_sinks():
    """The last key sees one query, itself; a document of 8 tokens gives its first key 0.34."""
    q = torch.ones(1, 40, 1, 1)
    k = torch.zeros(1, 40, 1, 1)
    k[0, 39] = 50.0
    documents = torch.tensor([[0] * 8 + [1] * 32])
    totals = totals_of(q * 1.0, k, AttentionMask(40, 40, documents))
    assert float(totals.sink_rate_any(0.3)) == 0.0
    assert float(totals.sink_rate(0.3)[0]) == 0.0
    short = totals_of(q[:, :8], k[:, :8], AttentionMask(8, 8))
    assert math.isnan(float(short.sink_rate(0.3)[0]))


def test_batches_add_up():
    q, k = random_qk(batch=6)
    mark = torch.rand(6, 40, generator=torch.Generator().manual_seed(2)) < 0.5
    whole = totals_of(q, k, AttentionMask(40, 40), {"m": mark})
    parts = AttentionTotals(2, (0.3,))
    for rows in (slice(0, 1), slice(1, 6)):
        part = attention_rows(q[rows], k[rows], AttentionMask(40, 40), scale=1.0)
        parts.add(part, {"m": mark[rows]})
    for name in ("share", "share/m", "entropy", "sink/0.3", "importance", "max_weight"):
        torch.testing.assert_close(parts.mean(name), whole.mean(name), rtol=1e-6, atol=0)
    assert torch.equal(parts.max_logit, whole.max_logit)
