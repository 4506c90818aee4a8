import math

import pytest
import torch
from torch.nn import functional as F

from gatelm.config import ConfigError
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.eval.long import by_length, long_documents, sliding_windows
from gatelm.inference.prefill import DecoderPrefill
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig

TEXTS = ["short", "a" * 3 + "bcdefgh" * 9, "ünïcode " * 9, "the fourth of these documents " * 4]


class Letters:
    """One token a byte; BOS is 256."""

    def __init__(self, bos_id=None):
        self.bos_id, self.adds_bos = bos_id, bos_id is not None

    def encode(self, text):
        return list(text.encode())

    def display(self, ids):
        return byte_tokenizer().display(ids)


def model(**rope):
    tree = {
        "vocab_size": 258,
        "hidden_dim": 16,
        "num_layers": 2,
        "layer": {"mixer": {"num_heads": 2, "rope": rope}, "ffn": {"ffn_dim": 24}},
        "init": {"std": 0.3},
    }
    decoder = Decoder(ModelConfig.parse(tree))
    init_weights(decoder, 0)
    return decoder.eval()


def naive(decoder, tokens):
    """The loss of every token but the first, in one forward."""
    with torch.no_grad():
        logits = decoder(tokens[None, :-1])[0]
    return F.cross_entropy(logits, tokens[1:], reduction="none")


@pytest.mark.parametrize("bos_id", [None, 256])
def test_documents_are_those_long_enough_cut_to_one_length(bos_id):
    found = long_documents(TEXTS, Letters(bos_id), num_tokens=66)
    front = [] if bos_id is None else [bos_id]
    wanted = [[*front, *text.encode()][:66] for text in TEXTS[1:]]
    assert found.tokens.tolist() == wanted
    assert found.available == 3
    assert found.bytes_per_token == 1.0
    fewer = long_documents(TEXTS, Letters(bos_id), num_tokens=66, max_documents=1)
    assert (len(fewer.tokens), fewer.available) == (1, 3)


def test_every_length_has_the_same_documents_and_one_forward_gives_all(monkeypatch):
    decoder, documents = model(), long_documents(TEXTS, Letters(256), num_tokens=60)
    forwards = []
    monkeypatch.setattr(
        decoder, "hidden", lambda *a, run=decoder.hidden, **k: forwards.append(a) or run(*a, **k)
    )
    found = by_length(DecoderPrefill(decoder), documents, [60, 9, 33], chunk_tokens=1000)
    assert len(forwards) == 3
    assert [entry.length_tokens for entry in found] == [9, 33, 60]
    for entry in found:
        losses = torch.stack([naive(decoder, t[: entry.length_tokens]) for t in documents.tokens])
        assert entry.loss == pytest.approx(float(losses.mean()), rel=1e-5)
        assert entry.bits_per_byte == pytest.approx(entry.loss / math.log(2), rel=1e-6)
        assert entry.targets == losses.numel() == sum(b.tokens for b in entry.bins)
        for b in entry.bins:
            part = losses[:, b.first - 1 : b.last]
            assert b.loss == pytest.approx(float(part.mean()), rel=1e-5)
    assert [(b.first, b.last) for b in found[-1].bins] == [
        (1, 1),
        (2, 3),
        (4, 7),
        (8, 15),
        (16, 31),
        (32, 59),
    ]


def test_positions_that_move_with_the_length_are_run_at_each():
    scaling = {"kind": "dynamic_ntk", "factor": 8, "original_tokens": 8}
    decoder = model(scaling=scaling)
    documents = long_documents(TEXTS, Letters(256), num_tokens=60)
    found = by_length(DecoderPrefill(decoder), documents, [20, 60], chunk_tokens=7)
    for entry in found:
        losses = torch.stack([naive(decoder, t[: entry.length_tokens]) for t in documents.tokens])
        assert entry.loss == pytest.approx(float(losses.mean()), rel=1e-5)
    first = found[0].bins[3].loss
    assert first != pytest.approx(found[1].bins[3].loss, rel=1e-4)


@pytest.mark.parametrize(("window", "stride"), [(16, 4), (16, 16), (25, 7), (60, 1), (100, 8)])
def test_sliding_windows_follow_the_published_loop(window, stride):
    decoder, documents = model(), long_documents(TEXTS, Letters(256), num_tokens=60)
    found = sliding_windows(
        DecoderPrefill(decoder), documents, window_tokens=window, stride_tokens=stride
    )
    means, total, count = [], 0.0, 0
    for tokens in documents.tokens:
        previous_end = 0
        for begin in range(0, len(tokens), stride):
            end = min(begin + window, len(tokens))
            new = end - previous_end
            labels = tokens[begin:end].clone()
            labels[:-new] = -100
            with torch.no_grad():
                logits = decoder(tokens[None, begin:end])[0]
            losses = F.cross_entropy(logits[:-1], labels[1:], reduction="none", ignore_index=-100)
            counted = int((labels[1:] != -100).sum())
            means.append(float(losses.sum()) / counted)
            total, count = total + float(losses.sum()), count + counted
            previous_end = end
            if end == len(tokens):
                break
    assert found.windows == len(means)
    assert found.targets == count
    assert found.loss == pytest.approx(total / count, rel=1e-5)
    assert found.window_mean_loss == pytest.approx(sum(means) / len(means), rel=1e-5)


def test_mistakes_are_one_sentence():
    reader, documents = DecoderPrefill(model()), long_documents(TEXTS, Letters(), num_tokens=40)
    with pytest.raises(ConfigError, match="the longest document has 120 tokens and 500 are needed"):
        long_documents(TEXTS, Letters(), num_tokens=500)
    with pytest.raises(ConfigError, match="--lengths: from 2 to 40 tokens"):
        by_length(reader, documents, [41])
    with pytest.raises(ConfigError, match="--stride 9: must be from 1 to --window 8"):
        sliding_windows(reader, documents, window_tokens=8, stride_tokens=9)
    documents.tokens[0, 0] = 300
    with pytest.raises(ConfigError, match="gives id 300, but the model has only 258"):
        by_length(reader, documents, [10])
