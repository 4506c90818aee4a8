import numpy as np
import pytest
import torch

from gatelm.data.batch import IGNORE, Batch
from gatelm.data.config import (
    AssociativeRecallConfig,
    BigramBackcopyConfig,
    ByteTokenizerConfig,
    TextDataConfig,
)
from gatelm.data.errors import DataError
from gatelm.data.prepare import prepare
from gatelm.data.source import build_source

TEXTS = [f"{n}: " + "abcdefghij" * (1 + n * 7 % 11) for n in range(60)]


@pytest.fixture
def text(write_corpus):
    source = write_corpus(TEXTS)

    def make(**settings):
        tokenizer = ByteTokenizerConfig()
        return TextDataConfig(
            **{"source": source, "tokenizer": tokenizer, "seq_len": 16, **settings}
        )

    return make


@pytest.fixture(params=["concat", "best_fit", "bigram_backcopy", "associative_recall"])
def cfg(request, text):
    if request.param == "bigram_backcopy":
        return BigramBackcopyConfig()
    if request.param == "associative_recall":
        return AssociativeRecallConfig()
    return text(packing=request.param)


def same(one: Batch, other: Batch) -> bool:
    assert one.marks.keys() == other.marks.keys()
    pairs = [(one.tokens, other.tokens), (one.targets, other.targets)]
    pairs += [(one.marks[name], other.marks[name]) for name in one.marks]
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_fresh_source_gives_the_same_batch_of_a_step(cfg):
    steps = [7, 0, 133, 7]
    first = build_source(cfg, seed=3)
    walked = {step: first.batch(step, batch_size=8) for step in range(134)}
    for step in steps:
        assert same(build_source(cfg, seed=3).batch(step, batch_size=8), walked[step])


def test_ranks_hold_the_rows_of_the_same_global_batch(cfg):
    source = build_source(cfg, seed=3)
    whole = source.batch(5, batch_size=6)
    for world_size in (1, 2, 3, 6):
        parts = [
            source.batch(5, batch_size=6, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        assert torch.equal(torch.cat([part.tokens for part in parts]), whole.tokens)
        assert torch.equal(torch.cat([part.targets for part in parts]), whole.targets)


def test_seeds_decide_training_but_not_validation(cfg):
    one, other = build_source(cfg, seed=0), build_source(cfg, seed=1)
    assert not torch.equal(one.batch(0, batch_size=8).tokens, other.batch(0, batch_size=8).tokens)
    for a, b in zip(one.validation(4, 12), other.validation(4, 12), strict=True):
        assert same(a, b)
    assert one.fingerprint == other.fingerprint


def test_shapes_and_types(cfg):
    source = build_source(cfg, seed=0)
    for batch in (source.batch(0, batch_size=5), next(source.validation(5, 5))):
        assert batch.tokens.shape == batch.targets.shape == (5, source.seq_len)
        assert batch.tokens.dtype == batch.targets.dtype == torch.int64
        assert 0 <= batch.tokens.min() <= batch.tokens.max() < source.vocab_size
        targets = batch.targets[batch.targets != IGNORE]
        assert len(targets) > 0
        assert 0 <= targets.min() <= targets.max() < source.vocab_size
        assert all(m.shape == batch.tokens.shape for m in batch.marks.values())
        assert len(source.decode_tokens(batch.tokens[0].tolist())) == source.seq_len


def test_validation_stops_where_it_is_told(cfg):
    source = build_source(cfg, seed=0)
    assert [len(batch) for batch in source.validation(4, 10)] == [4, 4, 2]


def test_an_epoch_of_text_reads_every_row_once(text):
    source = build_source(text(), seed=0)
    rows = source.sequences_per_epoch
    assert rows is not None
    batches = [source.batch(step, batch_size=1) for step in range(2 * rows)]
    epochs = [
        sorted(tuple(b.tokens[0].tolist()) for b in part)
        for part in (batches[:rows], batches[rows:])
    ]
    assert epochs[0] == epochs[1]
    assert any(
        not torch.equal(a.tokens, b.tokens)
        for a, b in zip(batches[:rows], batches[rows:], strict=True)
    )


def test_held_out_text_is_the_held_out_documents_and_no_other(text):
    source = build_source(text(), seed=0)
    assert source.tokenizer is not None
    batches = list(source.validation(4))
    targets = torch.cat([b.targets[b.targets != IGNORE] for b in batches])
    assert source.tokenizer.decode(targets.tolist()) == "".join(TEXTS[19::20])
    held_out_bytes = len("".join(TEXTS[19::20]))
    assert source.bytes_per_token == pytest.approx(held_out_bytes / len(targets))


def test_a_part_of_validation_is_spread_over_it(text):
    source = build_source(text(), seed=0)
    every = torch.cat([b.tokens for b in source.validation(8)])
    part = torch.cat([b.tokens for b in source.validation(8, 4)])
    index = np.arange(4) * len(every) // 4
    assert torch.equal(part, every[index])


def test_documents_are_given_only_where_a_mask_is_needed(text):
    source = build_source(text(), seed=0)
    batches = [source.batch(step, batch_size=2) for step in range(30)]
    plain = [b for b in batches if b.documents is None]
    masked = [b for b in batches if b.documents is not None]
    assert plain
    assert masked
    bos = source.vocab_size - 2
    assert all((b.tokens[:, 1:] != bos).all() for b in plain)
    assert all(b.documents.any() for b in masked if b.documents is not None)


def test_joined_documents_keep_padding_apart(text):
    isolated = build_source(text(packing="best_fit"), seed=0)
    joined = build_source(text(packing="best_fit", document_attention="joined"), seed=0)
    padded = 0
    for step in range(10):
        one, other = isolated.batch(step, batch_size=4), joined.batch(step, batch_size=4)
        assert torch.equal(one.tokens, other.tokens)
        if other.documents is None:
            assert one.documents is None or (one.documents >= 0).all()
        else:
            padded += 1
            assert one.documents is not None
            assert torch.equal(other.documents, one.documents.clamp(max=0))
    assert padded


def test_a_prepared_folder_gives_the_same_data(text, tmp_path):
    folder = prepare(text(), tmp_path / "out").folder
    direct = build_source(text(), seed=2)
    named = build_source(TextDataConfig(prepared=str(folder), seq_len=16), seed=2)
    assert named.fingerprint == direct.fingerprint
    assert same(named.batch(9, batch_size=4), direct.batch(9, batch_size=4))


@pytest.mark.parametrize(
    "settings",
    [
        {"seq_len": 32},
        {"packing": "best_fit"},
        {"row_start": "stream"},
        {"document_attention": "joined"},
        {"holdout_every": 10},
    ],
)
def test_what_changes_batches_changes_the_fingerprint(text, settings):
    one, other = build_source(text(), seed=0), build_source(text(**settings), seed=0)
    assert one.fingerprint != other.fingerprint


def test_task_seeds_change_the_fingerprint():
    prints = {build_source(BigramBackcopyConfig(task_seed=s), 0).fingerprint for s in (0, 1)}
    assert len(prints) == 2


def test_a_negative_seed_is_refused():
    with pytest.raises(DataError, match="seed: -1 is negative"):
        build_source(BigramBackcopyConfig(), seed=-1)
