import math

import pytest
import torch
from torch.nn import functional as F

from gatelm.analysis.probe.handover import DecoderHandover
from gatelm.analysis.probe.rotation import find_rotations
from gatelm.inference.streaming import (
    compare_first_tokens,
    recompute_losses,
    streaming_losses,
)
from gatelm.nn.model import Decoder, ModelConfig
from helpers import decoder

VOCAB = 32


def build(*gates, num_layers=2, seed=0, scale=5.0, positions=None, **mixer) -> Decoder:
    tree = {
        "vocab_size": VOCAB,
        "hidden_dim": 32,
        "num_layers": num_layers,
        "position_embedding": positions,
        "layer": {
            "mixer": {"num_heads": 4, "num_kv_heads": 2, **mixer},
            "ffn": {"ffn_dim": 48},
            "gates": list(gates),
        },
    }
    return decoder(tree, seed=seed, scale=scale)


def text(num_tokens=40, seed=0):
    return torch.randint(0, VOCAB, (num_tokens,), generator=torch.Generator().manual_seed(seed))


def nats(model, tokens):
    """Of the ordinary forward over the whole text."""
    with torch.no_grad():
        return F.cross_entropy(model(tokens[None, :-1])[0], tokens[1:], reduction="none").float()


MODELS = {
    "plain": {},
    "one pair of neighbours in two": {"rope": {"pairs": "neighbours", "partial_factor": 0.5}},
    "without positions": {"rope": None},
    "QK-norm": {"qk_norm": {}},
    "a window of its own": {"window_tokens": 6, "backend": "eager"},
}
LEARNED_SINK = {"site": "sdpa", "inputs": ["lse", "const"]}
GATED_MODELS = [
    ((), {"rope": {"pairs": "neighbours", "partial_factor": 0.5}}),
    ((), {"rope": {"scaling": {"kind": "yarn", "factor": 4.0, "original_tokens": 64}}}),
    (("sdpa-element",), {"window_tokens": 6}),
    (("value", "output"), {"qk_norm": {}}),
    (("scores-x", "scores-key"), {}),
    ((LEARNED_SINK,), {"backend": "eager"}),
]


@pytest.mark.parametrize(("gates", "mixer"), GATED_MODELS)
def test_a_cache_as_large_as_the_text_changes_nothing(gates, mixer):
    model, tokens = build(*gates, **mixer), text(20)
    losses = streaming_losses(
        DecoderHandover(model), tokens, first_tokens=4, window_tokens=16, chunk_tokens=7
    )
    torch.testing.assert_close(losses, nats(model, tokens), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mixer", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(("first_tokens", "window_tokens"), [(0, 8), (1, 8), (4, 5), (4, 1)])
@pytest.mark.parametrize("gates", [(), ("sdpa-head",)], ids=str)
def test_one_layer_sees_what_it_would_see_in_the_cached_tokens_alone(
    mixer, first_tokens, window_tokens, gates
):
    """Keys of a first layer depend on their token alone, so the ordinary forward over the tokens
    in the cache, at their positions there, must give the same."""
    model, tokens = build(*gates, num_layers=1, **mixer), text(30)
    losses = streaming_losses(
        DecoderHandover(model),
        tokens,
        first_tokens=first_tokens,
        window_tokens=window_tokens,
        chunk_tokens=6,
    )
    for i in range(29):
        cached = sorted(
            {*range(min(first_tokens, i + 1)), *range(max(0, i - window_tokens + 1), i + 1)}
        )
        with torch.no_grad():
            logits = model(tokens[None, cached])[0, -1]
        expected = F.cross_entropy(logits, tokens[i + 1]).float()
        torch.testing.assert_close(losses[i], expected, rtol=1e-5, atol=1e-5, msg=f"token {i}")


def one_by_one(model, tokens, first_tokens, window_tokens):
    """A token at a time, with a list of keys from which entries are really deleted."""
    handover = DecoderHandover(model)
    rotations = find_rotations(handover, tokens, first_tokens + window_tokens - 1)
    cache: dict[int, list] = {}
    losses = []

    def kernel(call):
        kept = cache.setdefault(call.layer, [])
        kept.append((call.k[0, 0], call.v[0, 0]))
        if len(kept) > first_tokens + window_tokens:
            del kept[first_tokens]
        place = torch.arange(len(kept))
        k = rotations[call.layer].apply(torch.stack([k for k, _ in kept])[None], place)[0]
        v = torch.stack([v for _, v in kept])
        q = rotations[call.layer].apply(call.q, place[-1:])[0, 0]
        group = q.shape[0] // k.shape[1]
        heads, lse = [], []
        for head, query in enumerate(q):
            scores = k[:, head // group] @ query * call.scale
            if call.window_tokens is not None:
                scores[: -call.window_tokens] = -math.inf
            heads.append(scores.softmax(-1) @ v[:, head // group])
            lse.append(scores.logsumexp(-1))
        return torch.stack(heads)[None, None], torch.stack(lse)[None, None]

    for i in range(len(tokens) - 1):
        at_zero = torch.zeros(1, 1, dtype=torch.long)
        hidden = handover.hidden(tokens[None, i : i + 1], at_zero, kernel)
        losses.append(F.cross_entropy(handover.logits(hidden)[0], tokens[i + 1 : i + 2]))
    return torch.stack(losses).float()


@pytest.mark.parametrize(("gates", "mixer"), GATED_MODELS)
@pytest.mark.parametrize(("first_tokens", "window_tokens"), [(0, 7), (5, 3)])
def test_chunks_equal_one_token_at_a_time(gates, mixer, first_tokens, window_tokens):
    model, tokens = build(*gates, num_layers=3, **mixer), text(33)
    expected = one_by_one(model, tokens, first_tokens, window_tokens)
    for chunk_tokens in (1, 4, 100):
        losses = streaming_losses(
            DecoderHandover(model),
            tokens,
            first_tokens=first_tokens,
            window_tokens=window_tokens,
            chunk_tokens=chunk_tokens,
        )
        torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)


def test_rotations_are_not_needed_when_the_model_places_each_token_twice():
    """The same loss with the model's own rotation: row 0 stands in the text, row 1 in the cache."""
    model, tokens = build("sdpa-element", num_layers=3), text(30)
    first_tokens, window_tokens, length = 3, 8, 29
    handover = DecoderHandover(model)
    index = torch.arange(length)
    in_cache = index.clamp(max=first_tokens + window_tokens - 1)
    near = (index[:, None] - index >= 0) & (index[:, None] - index < window_tokens)
    first = (index[:, None] - index >= window_tokens) & (index < first_tokens)

    def kernel(call):
        q, k, v = call.q, call.k.repeat_interleave(2, 2), call.v.repeat_interleave(2, 2)
        scores = torch.einsum("btnh,bsnh->bnts", q, k) * call.scale
        chosen = torch.where(near, scores[0], torch.where(first, scores[1], -math.inf))
        heads = torch.einsum("nts,snh->tnh", chosen.softmax(-1), v[0])
        lse = chosen.logsumexp(-1).T
        return torch.stack((heads, heads)), torch.stack((lse, lse))

    rows = tokens[:-1].expand(2, -1)
    hidden = handover.hidden(rows, torch.stack((index, in_cache)), kernel)[0]
    expected = F.cross_entropy(handover.logits(hidden), tokens[1:], reduction="none").float()
    losses = streaming_losses(
        handover, tokens, first_tokens=first_tokens, window_tokens=window_tokens, chunk_tokens=5
    )
    torch.testing.assert_close(losses, expected, rtol=1e-5, atol=1e-5)


def test_the_model_is_as_it_was():
    model, tokens = build("sdpa-element"), text(20)
    before = nats(model, tokens)
    backends = [block.attn.backend for block in model.layers]
    model.train()
    streaming_losses(DecoderHandover(model), tokens, first_tokens=1, window_tokens=4)
    assert model.training
    model.eval()
    assert [block.attn.backend for block in model.layers] == backends
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(nats(model, tokens), before)


def test_layers_with_a_state_cannot_stream():
    layer = {"mixer": {"kind": "delta", "num_heads": 2}, "ffn": {"ffn_dim": 8}}
    tree = {"vocab_size": 9, "hidden_dim": 8, "num_layers": 2, "layer": layer}
    with pytest.raises(ValueError, match="a state in place of keys"):
        DecoderHandover(Decoder(ModelConfig.parse(tree)))


def test_models_that_cannot_stream_say_so():
    learned = {"max_tokens": 64}
    with pytest.raises(ValueError, match="adds learned positions"):
        DecoderHandover(build(positions=learned, rope=None))
    with pytest.raises(ValueError, match="takes distance off its scores"):
        DecoderHandover(build(rope=None, position_bias={}))
    gate = {"site": "k_rot", "granularity": "element"}
    with pytest.raises(ValueError, match="not turned by one rotation"):
        streaming_losses(DecoderHandover(build(gate)), text(), first_tokens=1, window_tokens=8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"first_tokens": -1, "window_tokens": 4}, "0 or more first tokens"),
        ({"first_tokens": 0, "window_tokens": 0}, "a window of 1 or more"),
    ],
)
def test_impossible_caches_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        streaming_losses(DecoderHandover(build()), text(), **settings)


class Whole:
    """What `recompute_losses` needs of a probe."""

    device = torch.device("cpu")

    def __init__(self, model):
        self.model, self.lengths = model, []

    def observe(self, tokens):
        self.lengths.append(tokens.shape[1])
        with torch.no_grad():
            return self.model.hidden(tokens)

    def logits(self, hidden):
        return self.model.logits(hidden)


@pytest.mark.parametrize("stride_tokens", [1, 3, 8])
def test_recomputed_windows(stride_tokens):
    model, tokens = build(), text(30)
    losses = recompute_losses(Whole(model), tokens, window_tokens=8, stride_tokens=stride_tokens)
    assert losses.shape == (29,)
    for i in range(29):
        start = 0 if i < 8 else math.ceil((i - 7) / stride_tokens) * stride_tokens
        expected = nats(model, tokens[start : i + 2])[-1]
        torch.testing.assert_close(losses[i], expected, rtol=1e-5, atol=1e-5, msg=f"token {i}")


def test_the_table_compares_the_same_targets():
    model, tokens = build(), text(40)
    seen = []
    table = compare_first_tokens(
        DecoderHandover(model),
        tokens,
        window_tokens=8,
        counts=(0, 4),
        reference=Whole(model),
        progress=lambda what, done, total: seen.append((what, done, total)),
    )
    assert table.scored_tokens == 28
    for row in table.rows:
        losses = streaming_losses(
            DecoderHandover(model), tokens, first_tokens=row.first_tokens, window_tokens=8
        )
        assert row.loss == pytest.approx(float(losses[-28:].mean()), rel=1e-5)
    tree = table.to_json()
    assert tree["rows"][1]["perplexity"] == pytest.approx(math.exp(table.rows[1].loss))
    assert tree["reference"]["stride_tokens"] == 4
    assert seen[0] == ("0 first tokens", 39, 39)
    assert seen[-1] == ("windows from their start", 39, 39)


def test_a_text_that_does_not_fill_the_cache_twice_is_refused():
    with pytest.raises(ValueError, match=r"a text of 40 tokens .* give 72 or more"):
        compare_first_tokens(DecoderHandover(build()), text(40), window_tokens=32)
