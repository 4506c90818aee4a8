import math

import pytest
import torch
from torch.nn import functional as F

from gatelm.analysis.probe.gatelm_probe import GatelmProbe
from gatelm.config import ConfigError
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.eval.perplexity import IGNORE, TextRows, cut_rows, perplexity
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig

TEXTS = ["gated attention, of a head", "short", "ünïcode and a longer document of this text"]


class Letters:
    """One token a byte; BOS is 256."""

    def __init__(self, bos_id=None, adds_bos=False):
        self.bos_id, self.adds_bos = bos_id, adds_bos

    def encode(self, text):
        return list(text.encode())

    def display(self, ids):
        return byte_tokenizer().display(ids)


WITH_BOS, WITHOUT = Letters(256, adds_bos=True), Letters()


@pytest.fixture(scope="module")
def probe():
    tree = {
        "vocab_size": 258,
        "hidden_dim": 16,
        "num_layers": 2,
        "layer": {"mixer": {"num_heads": 2}, "ffn": {"ffn_dim": 24}, "gates": ["sdpa-head"]},
        "init": {"std": 0.3},
    }
    model = Decoder(ModelConfig.parse(tree))
    init_weights(model, 0)
    return GatelmProbe(model.eval())


def targets_of(rows):
    return [t for _, targets in rows.rows for t in targets if t != IGNORE]


@pytest.mark.parametrize("stride", [None, 1, 3, 7, 8])
@pytest.mark.parametrize("tokenizer", [WITH_BOS, WITHOUT], ids=["bos", "no-bos"])
def test_every_token_is_a_target_once_after_its_own_context(tokenizer, stride):
    rows = cut_rows(TEXTS, tokenizer, seq_len=8, stride=stride)
    skipped = 0 if tokenizer.bos_id else 1
    expected = [byte for text in TEXTS for byte in text.encode()[skipped:]]
    assert targets_of(rows) == expected
    joined = {bytes(t.encode()) for t in TEXTS}
    for inputs, targets in rows.rows:
        assert len(inputs) == len(targets) <= 8
        if tokenizer.bos_id:
            assert inputs[0] == 256
            assert 256 not in inputs[1:]
        else:
            assert any(bytes(inputs) in text for text in joined)
        # what follows an input is the next input
        for i, target in enumerate(targets[:-1]):
            assert target in (IGNORE, inputs[i + 1])
        if stride and targets.count(IGNORE):
            assert len(inputs) == 8


def naive(probe, rows):
    """(context tokens, loss) of every target, a row at a time with all logits."""
    out = []
    for inputs, targets in rows.rows:
        logits = probe.model(torch.tensor([inputs]))[0]
        for position, target in enumerate(targets):
            if target != IGNORE:
                loss = F.cross_entropy(logits[position], torch.tensor(target))
                out.append((position + 1, float(loss)))
    return out


@pytest.mark.parametrize("batch_size", [1, 2, 5, 64])
@pytest.mark.parametrize("tokenizer", [WITH_BOS, WITHOUT], ids=["bos", "no-bos"])
def test_it_is_the_naive_mean_whatever_the_batch_size(probe, tokenizer, batch_size):
    rows = cut_rows(TEXTS, tokenizer, seq_len=8, stride=6)
    with torch.no_grad():
        expected = naive(probe, rows)
    seen = []
    found = perplexity(probe, rows, batch_size=batch_size, report=seen.append)
    mean = sum(loss for _, loss in expected) / len(expected)
    assert found.tokens == len(expected)
    assert found.loss == pytest.approx(mean, abs=1e-5)
    assert found.perplexity == pytest.approx(math.exp(mean), rel=1e-5)
    num_bytes, num_tokens = sum(len(t.encode()) for t in TEXTS), rows.num_tokens
    assert found.bits_per_byte == pytest.approx(mean / math.log(2) * num_tokens / num_bytes)
    assert seen[-1] == len(rows.rows)
    for entry in found.bins:
        part = [loss for context, loss in expected if entry.first <= context <= entry.last]
        assert entry.tokens == len(part)
        assert entry.loss == pytest.approx(sum(part) / len(part), abs=1e-5)
    assert sum(entry.tokens for entry in found.bins) == found.tokens
    assert [(b.first, b.last) for b in found.bins] == [(1, 1), (2, 3), (4, 7), (8, 8)]


def test_a_uniform_model_has_its_vocabulary_as_perplexity(probe):
    for parameter in probe.model.parameters():
        parameter.data.zero_()
    rows = cut_rows(TEXTS, WITH_BOS, seq_len=8)
    found = perplexity(probe, rows)
    assert found.perplexity == pytest.approx(258, rel=1e-5)
    assert found.bits_per_byte == pytest.approx(math.log2(258))


def test_max_tokens_spreads_over_the_text():
    rows = cut_rows([f"document {i}" for i in range(100)], WITH_BOS, seq_len=8, max_tokens=80)
    assert len(rows.rows) == 10
    assert rows.total_rows == 200
    assert rows.num_documents == 100
    starts = {bytes(inputs[1:]) for inputs, _ in rows.rows}
    assert len(starts) > 1


def test_a_text_that_spells_out_bos_does_not_double_it():
    class Spelled(Letters):
        def encode(self, text):
            return [256, *text.encode()]

    rows = cut_rows(["abc"], Spelled(256, adds_bos=True), seq_len=8)
    assert rows.rows == [([256, 97, 98], [97, 98, 99])]


def test_mistakes_are_one_sentence(probe):
    with pytest.raises(ConfigError, match=r"--data: no token to predict"):
        cut_rows(["a"], WITHOUT, seq_len=8)
    with pytest.raises(ConfigError, match=r"--stride 9: must be from 1 to --seq-len 8"):
        cut_rows(TEXTS, WITHOUT, seq_len=8, stride=9)
    with pytest.raises(ConfigError, match=r"--bos always: the tokenizer has no BOS"):
        cut_rows(TEXTS, WITHOUT, seq_len=8, bos="always")
    rows = cut_rows(TEXTS, WITHOUT, seq_len=8)
    wrong = TextRows([([1, 300], [300, 2])], rows.first, 8, 1, 3, 3, 1)
    with pytest.raises(ConfigError, match="gives id 300, but the model has only 258"):
        perplexity(probe, wrong)
