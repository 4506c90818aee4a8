import math

import pytest
import torch
from torch.nn import functional as F

from gatelm.data.batch import IGNORE
from gatelm.data.source import build_source
from gatelm.train.evaluate import evaluate, held_out_batches
from gatelm.train.parallel import World
from gatelm.train.setup import new_state

ALONE = World(torch.device("cpu"))


@pytest.fixture
def padded_text(tmp_path):
    """Documents of many lengths, so that batches hold unequal numbers of targets."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for index in range(30):
        (corpus / f"{index:02d}.txt").write_text("gate " * (1 + index % 9))
    return {
        "kind": "text",
        "source": str(corpus),
        "tokenizer": {"kind": "byte"},
        "seq_len": 32,
        "packing": "best_fit",
        "holdout_every": 3,
        "cache": str(tmp_path / "cache"),
    }


def test_the_loss_is_the_mean_over_all_targets(tiny, padded_text):
    cfg = tiny({"data": padded_text, "model": {"layer": {"residual_dropout": 0.5}}})
    source = build_source(cfg.data, 0)
    model = new_state(cfg, source, ALONE).model.train()
    values = evaluate(model, source, cfg.train, ALONE)
    assert model.training
    model.eval()
    losses = []
    for batch in source.validation(1, cfg.train.eval_sequences):
        with torch.no_grad():
            logits = model(batch.tokens, documents=batch.documents).flatten(0, 1)
        targets = batch.targets.flatten()
        kept = targets != IGNORE
        losses += F.cross_entropy(logits[kept], targets[kept], reduction="none").tolist()
    expected = sum(losses) / len(losses)
    assert values["val_loss"] == pytest.approx(expected, rel=1e-5)
    bits = expected / math.log(2) / source.bytes_per_token
    assert values["val_bits_per_byte"] == pytest.approx(bits, rel=1e-5)


def test_synthetic_data_has_no_bits_per_byte(tiny):
    cfg = tiny()
    source = build_source(cfg.data, 0)
    values = evaluate(new_state(cfg, source, ALONE).model, source, cfg.train, ALONE)
    assert list(values) == ["val_loss"]


def test_no_batch_is_larger_than_asked_for(tiny):
    cfg = tiny({"train": {"micro_batch_size": 3}})
    source = build_source(cfg.data, 0)
    assert [len(b) for b in held_out_batches(source, cfg.train, 8)] == [3, 3, 2]
    assert [len(b) for b in held_out_batches(source, cfg.train, 2)] == [2]
