import math

import pytest
import torch

from gatelm.analysis.probe.layout import Layout
from gatelm.analysis.probe.protocol import AttentionCall
from gatelm.analysis.statistics.profile import LEADING_KEYS, Carried, Profile, distance_edges
from gatelm.analysis.statistics.streaming import WeightBlock, attention_rows, weight_blocks
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.attention.pattern import Pattern
from gatelm.testing.statistics import naive_weights

SIZE = 21
DOCUMENTS = {
    "one": None,
    "packed": [[0] * 7 + [1] * 1 + [2] * 13, [0] * 21],
    "padded left": [[-1] * 6 + [0] * 15, [-1] + [0] * 9 + [1] * 11],
    "padded right": [[0] * 15 + [-1] * 6, [0] * 20 + [-1]],
}


def make(documents=None, seed=0, **settings):
    generator = torch.Generator().manual_seed(seed)
    ids = None if documents is None else torch.tensor(documents)
    return AttentionCall(
        layer=0,
        q=2 * torch.randn(2, SIZE, 4, 8, generator=generator),
        k=torch.randn(2, SIZE, 2, 8, generator=generator),
        v=torch.randn(2, SIZE, 2, 8, generator=generator),
        mask=AttentionMask(SIZE, SIZE, ids),
        scale=0.35,
        **settings,
    )


def gate_of(width, seed=1):
    return torch.rand(2, SIZE, 4, width, generator=torch.Generator().manual_seed(seed))


def weights_of(call):
    settings = {
        name: getattr(call, name) for name in ("scale", "window_tokens", "softcap", "sink_logits")
    }
    return naive_weights(call.q, call.k, call.mask, **settings)[1]


def profile_of(call, gate=None, block_elements=1 << 20):
    settings = {
        name: getattr(call, name) for name in ("scale", "window_tokens", "softcap", "sink_logits")
    }
    rows = attention_rows(call.q, call.k, call.mask, **settings)
    profile = Profile(4)
    blocks = weight_blocks(call, rows.lse, rows.layout, block_elements=block_elements)
    profile.add(blocks, rows.layout, Carried(call.v, 4, gate), call.window_tokens)
    return profile


def counted_pairs(call):
    """(row, query, key, first key of the document) of every weight that counts."""
    documents = call.mask.documents
    if documents is None:
        documents = torch.zeros(2, SIZE, dtype=torch.long)
    allowed = call.mask.dense(Pattern(call.window_tokens)).expand(2, 1, SIZE, SIZE)[:, 0]
    for b in range(2):
        for i in range(SIZE):
            if documents[b, i] < 0:
                continue
            first = i
            while first > 0 and documents[b, first - 1] == documents[b, i]:
                first -= 1
            for j in range(SIZE):
                if allowed[b, i, j]:
                    yield b, i, j, first


@pytest.mark.parametrize("documents", DOCUMENTS)
@pytest.mark.parametrize("window_tokens", [None, 1, 5, 21])
def test_the_blocks_are_the_weights(documents, window_tokens):
    call = make(DOCUMENTS[documents], window_tokens=window_tokens)
    rows = attention_rows(
        call.q, call.k, call.mask, scale=call.scale, window_tokens=call.window_tokens
    )
    found = torch.zeros(2, 4, SIZE, SIZE)
    for block in weight_blocks(call, rows.lse, rows.layout, block_elements=3 * 2 * 4 * SIZE):
        found[:, :, block.start : block.stop, block.low : block.high] = block.weights
    torch.testing.assert_close(found, weights_of(call), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("documents", DOCUMENTS)
@pytest.mark.parametrize("window_tokens", [None, 5])
@pytest.mark.parametrize("block_elements", [1, 3 * 2 * 4 * SIZE, 1 << 20])
def test_leading_shares_and_distances_against_loops(documents, window_tokens, block_elements):
    call = make(DOCUMENTS[documents], window_tokens=window_tokens)
    profile = profile_of(call, block_elements=block_elements)
    weights = weights_of(call).double()
    window = SIZE if window_tokens is None else window_tokens
    edges = distance_edges(SIZE)
    leading = {m: torch.zeros(4).double() for m in LEADING_KEYS}
    reached = dict.fromkeys(LEADING_KEYS, 0)
    distance, on_first = torch.zeros(4, len(edges) - 1), torch.zeros(4, len(edges) - 1)
    counted = 0
    for b, i, j, first in counted_pairs(call):
        place = i - first
        for m in LEADING_KEYS:
            if m <= place < window:
                reached[m] += i == j
                if j < first + m:
                    leading[m] += weights[b, :, i, j]
        if place >= 1 and window > 1:
            counted += i == j
            in_bin = next(e for e in range(len(edges) - 1) if i - j < edges[e + 1])
            distance[:, in_bin] += weights[b, :, i, j].float()
            if j == first:
                on_first[:, in_bin] += weights[b, :, i, j].float()
    for m in LEADING_KEYS:
        if reached[m]:
            torch.testing.assert_close(
                profile.leading(m), leading[m] / reached[m], rtol=1e-5, atol=0
            )
        else:
            assert bool(profile.leading(m).isnan().all())
    torch.testing.assert_close(
        profile.mean("distance").float(), distance / counted, rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(
        profile.mean("distance_first").float(), on_first / counted, rtol=1e-4, atol=1e-6
    )
    torch.testing.assert_close(
        profile.mean("distance").sum(dim=1), torch.ones(4).double(), rtol=1e-5, atol=0
    )


@pytest.mark.parametrize("documents", ["one", "packed"])
@pytest.mark.parametrize("width", [1, 8])
def test_what_is_carried_against_loops(documents, width):
    call, gate = make(DOCUMENTS[documents]), gate_of(width)
    profile = profile_of(call, gate, block_elements=3 * 2 * 4 * SIZE)
    weights = weights_of(call)
    sums = {name: [torch.zeros(4), torch.zeros(4)] for name in ("value", "gated")}
    for b, i, j, first in counted_pairs(call):
        if i == first:
            continue
        value = call.v[b, j].repeat_interleave(2, dim=0)
        for name, vector in (("value", value), ("gated", value * gate[b, i])):
            size = weights[b, :, i, j] * vector.norm(dim=-1)
            sums[name][1] += size
            if j == first:
                sums[name][0] += size
    for name, (at_first, total) in sums.items():
        torch.testing.assert_close(
            profile.carried_share(name).float(), at_first / total, rtol=1e-4, atol=1e-6
        )
        assert profile.carried_mean(name) == pytest.approx(
            float(at_first.sum() / total.sum()), rel=1e-4
        )


def test_uniform_attention_has_its_uniform_values():
    call = make(DOCUMENTS["packed"])
    call = AttentionCall(0, call.q * 0, call.k, call.v, call.mask, 1.0)
    profile = profile_of(call)
    uniform = profile.mean("distance_uniform")[0]
    for head in range(4):
        torch.testing.assert_close(profile.mean("distance")[head], uniform)
    for m in LEADING_KEYS:
        expected = float(profile.mean(f"leading_uniform/{m}")[0])
        assert profile.leading(m).tolist() == pytest.approx([expected] * 4, rel=1e-5)


def test_a_sink_without_value_carries_nothing():
    """All weight on the first token, whose value is zero: share 1, carried 0."""
    q, k = torch.ones(1, 32, 1, 1), torch.zeros(1, 32, 1, 1)
    k[0, 0] = 12.0
    v = torch.ones(1, 32, 1, 4)
    v[0, 0] = 0.0
    call = AttentionCall(0, q, k, v, AttentionMask(32, 32), 1.0)
    rows = attention_rows(q, k, call.mask, scale=1.0)
    profile = Profile(1)
    profile.add(weight_blocks(call, rows.lse, rows.layout), rows.layout, Carried(v, 1))
    assert float(profile.leading(1)) == pytest.approx(1.0, abs=1e-3)
    assert float(profile.carried_share("value")) == 0.0
    assert math.isnan(float(profile.carried_share("gated")))


def test_a_shut_query_does_not_count_after_the_gate():
    """Queries that attend to the first token are shut: the gate lets nothing of it pass."""
    q = torch.zeros(1, 32, 1, 1)
    q[0, 1::2] = 1.0
    k, v = torch.zeros(1, 32, 1, 1), torch.ones(1, 32, 1, 4)
    k[0, 0] = 30.0
    gate = torch.ones(1, 32, 1, 1)
    gate[0, 1::2] = 0.0
    call = AttentionCall(0, q, k, v, AttentionMask(32, 32), 1.0)
    rows = attention_rows(q, k, call.mask, scale=1.0)
    profile = Profile(1)
    profile.add(weight_blocks(call, rows.lse, rows.layout), rows.layout, Carried(v, 1, gate))
    open_queries = range(2, 32, 2)
    uniform = sum(1 / (i + 1) for i in open_queries) / len(open_queries)
    assert float(profile.carried_share("gated")) == pytest.approx(uniform, rel=1e-5)
    assert float(profile.carried_share("value")) > 0.5


def test_softcap_and_sink_logits_are_in_the_weights():
    call = make(softcap=2.0, sink_logits=torch.tensor([0.0, 1.0, 5.0, -3.0]))
    profile, weights = profile_of(call), weights_of(call)
    expected = weights[:, :, 1:, 0].mean(dim=(0, 2)).double()
    torch.testing.assert_close(profile.leading(1), expected, rtol=1e-5, atol=0)
    assert float(profile.mean("distance").sum(dim=1)[2]) < 0.9


def test_batches_of_other_lengths_add_up():
    long, short = make(), make(seed=3)
    profile = Profile(4)
    total = []
    for call, size in ((long, SIZE), (short, 9)):
        weights = weights_of(call)[:, :, :size, :size]
        profile.add([WeightBlock(0, size, 0, size, weights)], Layout.of(None, 2, size))
        total.append(weights[:, :, 1:, 0].sum(dim=(0, 2)))
    expected = (total[0] + total[1]).double() / (2 * 20 + 2 * 8)
    torch.testing.assert_close(profile.leading(1), expected, rtol=1e-5, atol=0)
    assert profile.mean("distance").shape == (4, len(distance_edges(SIZE)) - 1)


def test_edges_double():
    assert distance_edges(21) == [0, 1, 2, 4, 8, 16, 32]
    assert distance_edges(1) == [0, 1]
