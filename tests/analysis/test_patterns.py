"""Statistics of layers that see blocks, kept first tokens or a second sequence."""

import pytest
import torch

from gatelm.analysis.measure import analyze_batches
from gatelm.analysis.statistics.streaming import attention_rows
from gatelm.data.batch import Batch
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.attention.module import use_backend
from gatelm.nn.attention.pattern import BlockSparseConfig, Pattern
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.testing.statistics import naive_attention_rows

SPARSE = {"block_tokens": 2, "stride_blocks": 3}
PATTERNS = {
    "blocks": Pattern(blocks=BlockSparseConfig(**SPARSE)),
    "global": Pattern(blocks=BlockSparseConfig(block_tokens=3, global_blocks=1)),
    "first": Pattern(window_tokens=3, first_tokens=2),
}
DOCUMENTS = {"one": None, "packed": [[-1] * 3 + [0] * 7 + [1] * 9, [0] * 17 + [-1] * 2]}


@pytest.mark.parametrize("documents", DOCUMENTS.values(), ids=DOCUMENTS)
@pytest.mark.parametrize("num_queries", [19, 6])
@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_streamed_statistics_equal_the_naive_ones(pattern, num_queries, documents):
    generator = torch.Generator().manual_seed(0)
    q = 2 * torch.randn(2, num_queries, 4, 8, generator=generator)
    k = torch.randn(2, 19, 2, 8, generator=generator)
    ids = None if documents is None else torch.tensor(documents)
    mask = AttentionMask(num_queries, 19, ids)
    rows = attention_rows(q, k, mask, scale=0.35, pattern=pattern, block_elements=4 * 2 * 4 * 19)
    for name, expected in naive_attention_rows(q, k, mask, scale=0.35, pattern=pattern).items():
        actual = getattr(rows, name)
        if expected.is_floating_point():
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, msg=name)
        else:
            assert torch.equal(actual, expected), name


def build(**overrides):
    tree = {
        "vocab_size": 20,
        "hidden_dim": 16,
        "num_layers": 2,
        "layer": {"mixer": {"num_heads": 2}, "ffn": {"ffn_dim": 16}, "gates": ["sdpa-head"]},
        "layer_overrides": [{"layers": "1:", "set": overrides}],
    }
    model = Decoder(ModelConfig.parse(tree, "model"))
    init_weights(model, 0)
    return model


@pytest.mark.parametrize(
    "change", [{"mixer.sparsity": SPARSE}, {"mixer.window_tokens": 3, "mixer.first_tokens": 1}]
)
@pytest.mark.parametrize("detail", ["standard", "full"])
def test_an_analysis_measures_what_the_layer_did(change, detail):
    model = build(**change)
    tokens = torch.randint(0, 20, (3, 16), generator=torch.Generator().manual_seed(1))
    found = analyze_batches(model, [Batch(tokens, tokens)], detail=detail).to_json()
    use_backend(model, "eager")
    probs = []
    model.layers[1].attn.backend_taps["probs"].register_forward_hook(
        lambda module, args, out: probs.append(out)
    )
    model(tokens)
    sees_first = AttentionMask(16, 16).dense(model.layers[1].attn.pattern)[0, 0, 1:, 0]
    expected = probs[0][:, :, 1:, 0][..., sees_first].mean(dim=(0, 2))
    shares = torch.tensor(found["first_token_share"][1])
    torch.testing.assert_close(shares, expected, atol=1e-4, rtol=0)
    maps = [m["weights"] for m in found["attention_maps"]["maps"] if m["layer"] == 1]
    torch.testing.assert_close(torch.tensor(maps), probs[0][0], atol=1e-4, rtol=0)


def test_a_layer_that_reads_a_second_sequence_is_unread_but_its_gate_is_not():
    model = build(**{"mixer.memory": {"hidden_dim": 5, "max_tokens": 7}, "mixer.rope": None})
    tokens = torch.randint(0, 20, (3, 16), generator=torch.Generator().manual_seed(1))
    batch = Batch(tokens, tokens, memory=torch.randn(3, 7, 5))
    found = analyze_batches(model, [batch])
    assert found.totals.probe.unread == {1: "it attends to a second sequence"}
    assert list(found.totals.attention) == [0]
    assert [gate["layer"] for gate in found.to_json()["gates"]] == [0, 1]
