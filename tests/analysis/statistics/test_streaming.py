import pytest
import torch

from gatelm.analysis.probe.protocol import AttentionCall
from gatelm.analysis.statistics.streaming import attention_rows, weight_blocks
from gatelm.nn.attention.masks import AttentionMask
from gatelm.testing.statistics import naive_attention_rows, naive_weights

DOCUMENTS = {
    "one": None,
    "packed": [[0] * 7 + [1] * 1 + [2] * 13, [0] * 21],
    "padded right": [[0] * 15 + [-1] * 6, [0] * 20 + [-1]],
    "padded left": [[-1] * 6 + [0] * 15, [-1] + [0] * 9 + [1] * 11],
}


def make(documents, *, num_queries=21, kv_heads=2, seed=0, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(2, num_queries, 4, 8, generator=generator) * spread
    k = torch.randn(2, 21, kv_heads, 8, generator=generator)
    ids = None if documents is None else torch.tensor(documents)
    return q, k, AttentionMask(num_queries, 21, ids)


def assert_equal_to_naive(q, k, mask, **settings):
    block = settings.pop("block_elements", 1 << 20)
    rows = attention_rows(q, k, mask, scale=0.35, block_elements=block, **settings)
    for name, expected in naive_attention_rows(q, k, mask, scale=0.35, **settings).items():
        actual = getattr(rows, name)
        if expected.is_floating_point():
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, msg=name)
        else:
            assert torch.equal(actual, expected), name


@pytest.mark.parametrize("documents", DOCUMENTS)
@pytest.mark.parametrize("window_tokens", [None, 1, 5, 21])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_streaming_equals_naive(documents, window_tokens, kv_heads):
    q, k, mask = make(DOCUMENTS[documents], kv_heads=kv_heads)
    assert_equal_to_naive(q, k, mask, window_tokens=window_tokens, block_elements=3 * 2 * 4 * 21)


@pytest.mark.parametrize("documents", ["one", "packed"])
def test_fewer_queries_than_keys(documents):
    q, k, mask = make(DOCUMENTS[documents], num_queries=9)
    assert_equal_to_naive(q, k, mask, window_tokens=6)
    assert_equal_to_naive(q, k, mask)


@pytest.mark.parametrize("documents", DOCUMENTS)
@pytest.mark.parametrize("window_tokens", [None, 5])
def test_distance_may_count(documents, window_tokens):
    q, k, mask = make(DOCUMENTS[documents], num_queries=9)
    slopes = (0.5, 0.25, 0.125, 0.0)
    settings = {"window_tokens": window_tokens, "alibi_slopes": slopes}
    assert_equal_to_naive(q, k, mask, block_elements=3 * 2 * 4 * 21, **settings)
    call = AttentionCall(0, q, k, k, mask, 0.35, window_tokens, alibi_slopes=slopes)
    rows = attention_rows(q, k, mask, scale=0.35, **settings)
    blocks = weight_blocks(call, rows.lse, rows.layout, block_elements=2 * 2 * 4 * 21)
    expected = naive_weights(q, k, mask, scale=0.35, **settings)[1]
    for block in blocks:
        found = expected[:, :, block.start : block.stop, block.low : block.high]
        torch.testing.assert_close(block.weights, found, rtol=1e-5, atol=1e-6)


def test_softcap_and_learned_sink():
    q, k, mask = make(DOCUMENTS["packed"], spread=20.0)
    assert_equal_to_naive(
        q, k, mask, softcap=5.0, sink_logits=torch.tensor([-3.0, 0.0, 1.0, 30.0]), window_tokens=8
    )


def test_block_size_does_not_matter():
    q, k, mask = make(DOCUMENTS["padded left"])
    small = attention_rows(q, k, mask, scale=1.0, block_elements=1)
    large = attention_rows(q, k, mask, scale=1.0)
    torch.testing.assert_close(small.importance, large.importance)
    torch.testing.assert_close(small.entropy, large.entropy)


def test_a_complete_sink_is_computed_without_cancellation():
    """The rest of the row has 1e-6 of the weight; its entropy is still that of a uniform row."""
    q = torch.ones(1, 32, 1, 1, dtype=torch.float32)
    k = torch.zeros(1, 32, 1, 1)
    k[0, 0] = 18.0
    rows = attention_rows(q, k, AttentionMask(32, 32), scale=1.0)
    others = torch.arange(1, 32, dtype=torch.float32)
    torch.testing.assert_close(rows.entropy_without_first[0, 0, 1:], others.log())
    torch.testing.assert_close(rows.first_weight[0, 0], torch.ones(32))


def test_bfloat16_inputs_are_reduced_in_float32_under_autocast():
    q, k, mask = make(None)
    q, k = q.bfloat16(), k.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = attention_rows(q, k, mask, scale=0.5)
    expected = naive_attention_rows(q.float(), k.float(), mask, scale=0.5)
    torch.testing.assert_close(rows.first_weight, expected["first_weight"], rtol=1e-5, atol=1e-5)
