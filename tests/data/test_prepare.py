import errno
import multiprocessing
import os
import time
from itertools import pairwise

import pytest

from gatelm.data import prepare as prepare_module
from gatelm.data import shards
from gatelm.data.config import (
    BpeTokenizerConfig,
    ByteTokenizerConfig,
    CorpusConfig,
    FileTokenizerConfig,
    TextDataConfig,
)
from gatelm.data.errors import DataError
from gatelm.data.prepare import default_cache, prepare
from gatelm.data.shards import open_prepared
from gatelm.data.tokenizer import train_bpe

TEXTS = [f"This is document {n}, and it says {n * n} things.\n" * (1 + n % 3) for n in range(45)]
BYTES = ByteTokenizerConfig()


def corpus(source, **settings):
    return CorpusConfig.parse({"source": source, "tokenizer": BYTES, **settings})


def documents(stream, tokenizer):
    starts = [*stream.document_starts, stream.num_tokens]
    return [tokenizer.decode(stream.read(a, b)) for a, b in pairwise(starts)]


@pytest.mark.parametrize("tokenizer", [BYTES, BpeTokenizerConfig(vocab_size=300)])
def test_shards_hold_the_documents(write_corpus, tokenizer):
    done = prepare(corpus(write_corpus(TEXTS), tokenizer=tokenizer))
    opened = open_prepared(done.folder)
    assert documents(opened.train, opened.tokenizer) == [
        text for n, text in enumerate(TEXTS) if n % 20 != 19
    ]
    assert documents(opened.validation, opened.tokenizer) == TEXTS[19::20]
    manifest = done.manifest
    assert manifest.train.text_bytes + manifest.validation.text_bytes == len("".join(TEXTS))
    assert manifest.validation.num_documents == 2


def test_batches_do_not_change_the_result(write_corpus, monkeypatch, tmp_path):
    cfg = corpus(write_corpus(TEXTS))
    whole = prepare(cfg, tmp_path / "whole").manifest
    monkeypatch.setattr(prepare_module, "_ENCODE_BYTES", 100)
    assert prepare(cfg, tmp_path / "pieces").manifest == whole


def test_held_out_documents_do_not_train_the_tokenizer(write_corpus):
    texts = ["plain words here\n"] * 19 + ["zqzqzqzq " * 200]
    tokenizer = BpeTokenizerConfig(vocab_size=270)
    opened = open_prepared(prepare(corpus(write_corpus(texts), tokenizer=tokenizer)).folder)
    assert len(opened.tokenizer.encode("zqzq")) == 4


def test_a_large_vocabulary_is_stored_in_32_bits(write_corpus, tmp_path):
    import tokenizers

    words = {f"w{n}": n for n in range(70_000)}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "w0"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.add_special_tokens(["<s>", "</s>"])
    inner.save(str(tmp_path / "t.json"))
    tokenizer = FileTokenizerConfig(path=str(tmp_path / "t.json"))
    done = prepare(corpus(write_corpus(["w1 w69999", "w66000"]), tokenizer=tokenizer))
    opened = open_prepared(done.folder)
    assert done.manifest.dtype == "uint32"
    assert opened.train.read(0, 3).tolist() == [70_000, 1, 69_999]


def test_a_second_preparation_is_found(write_corpus):
    cfg = corpus(write_corpus(TEXTS))
    first = prepare(cfg)
    before = {path: path.stat().st_mtime_ns for path in first.folder.iterdir()}
    second = prepare(cfg)
    assert (first.status, second.status) == ("written", "found")
    assert second.folder == first.folder
    assert second.folder.parent == default_cache()
    assert {path: path.stat().st_mtime_ns for path in first.folder.iterdir()} == before


def test_settings_of_the_rows_prepare_nothing_new(write_corpus):
    source = write_corpus(TEXTS)
    first = prepare(TextDataConfig(source=source, tokenizer=BYTES, seq_len=64))
    assert prepare(TextDataConfig(source=source, tokenizer=BYTES, seq_len=32)).status == "found"
    assert prepare(corpus(source)).folder == first.folder


def test_the_same_content_elsewhere_is_the_same_corpus(write_corpus):
    first = prepare(corpus(write_corpus(TEXTS, "one")))
    second = prepare(corpus(write_corpus(TEXTS, "two")))
    assert second.folder != first.folder
    assert second.manifest.fingerprint == first.manifest.fingerprint


@pytest.mark.parametrize(
    "settings",
    [
        {"holdout_every": 10},
        {"max_documents": 30},
        {"max_bytes": 500},
        {"tokenizer": BpeTokenizerConfig(vocab_size=280)},
    ],
)
def test_settings_change_the_fingerprint(write_corpus, settings):
    source = write_corpus(TEXTS)
    one, other = prepare(corpus(source)), prepare(corpus(source, **settings))
    assert one.folder != other.folder
    assert one.manifest.fingerprint != other.manifest.fingerprint


@pytest.mark.parametrize("hashed_bytes", [2**28, 0])
def test_a_changed_file_changes_the_fingerprint(write_corpus, monkeypatch, hashed_bytes):
    monkeypatch.setattr(prepare_module, "_HASHED_BYTES", hashed_bytes)
    cfg = corpus(write_corpus(TEXTS))
    first = prepare(cfg)
    changed = TEXTS[0].replace("says", "said")
    time.sleep(0.02)  # file times are coarser than a write
    write_corpus([changed, *TEXTS[1:]])
    second = prepare(cfg)
    assert second.status == "written"
    assert second.manifest.fingerprint != first.manifest.fingerprint


def test_another_tokenizer_file_under_the_same_name_is_noticed(write_corpus, tmp_path):
    path = tmp_path / "t.json"
    cfg = corpus(write_corpus(TEXTS), tokenizer=FileTokenizerConfig(path=str(path)))
    train_bpe(TEXTS, 280).save(path)
    first = prepare(cfg)
    train_bpe(TEXTS, 290).save(path)
    assert prepare(cfg).manifest.vocab_size == 290
    assert first.manifest.vocab_size == 280


def test_a_named_folder_is_never_overwritten(write_corpus, tmp_path):
    source = write_corpus(TEXTS)
    folder = tmp_path / "deep" / "out"
    assert prepare(corpus(source), folder).status == "written"
    assert prepare(corpus(source), folder).status == "found"
    with pytest.raises(DataError, match="prepared from other inputs or settings"):
        prepare(corpus(source, holdout_every=7), folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("keep me")
    with pytest.raises(DataError, match="exists and is no prepared corpus"):
        prepare(corpus(source), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "keep me"
    (tmp_path / "empty").mkdir()
    assert prepare(corpus(source), tmp_path / "empty").status == "written"


def test_a_prepared_folder_is_no_source(write_corpus):
    folder = prepare(corpus(write_corpus(TEXTS))).folder
    with pytest.raises(DataError, match=r"name it as data\.prepared"):
        prepare(corpus(str(folder)))


def left_behind(folder):
    return [path for path in folder.iterdir() if not path.name.endswith(".lock")]


@pytest.mark.parametrize("tokenizer", [BYTES, BpeTokenizerConfig(vocab_size=300)])
def test_an_error_half_way_leaves_nothing(write_corpus, own_cache, tokenizer):
    source = write_corpus(TEXTS)
    with open(f"{source}/0030.txt", "wb") as file:  # noqa: PTH123
        file.write(b"\xff\xfe")
    with pytest.raises(DataError, match=r"0030\.txt: not UTF-8"):
        prepare(corpus(source, tokenizer=tokenizer))
    assert left_behind(own_cache) == []


@pytest.mark.parametrize("texts", [[], ["", " \n"]])
def test_an_empty_corpus_leaves_nothing(write_corpus, own_cache, texts):
    source = write_corpus(texts)
    with pytest.raises(DataError, match=r"holds no text|the corpus is empty"):
        prepare(corpus(source))
    assert left_behind(own_cache) == []


class FullDisk:
    """Takes some writes, then behaves as a disk without space."""

    def __init__(self, file, writes):
        self._file, self._left = file, writes

    def write(self, content):
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._file.write(content)

    def __getattr__(self, name):
        return getattr(self._file, name)


@pytest.mark.parametrize("writes", [0, 1, 20])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    write_corpus, own_cache, monkeypatch, writes
):
    start = shards._HashedFile.__init__

    def limited(self, path):
        start(self, path)
        self._file = FullDisk(self._file, writes)

    monkeypatch.setattr(shards._HashedFile, "__init__", limited)
    with pytest.raises(DataError, match=r"the disk is full .*choose another disk") as caught:
        prepare(corpus(write_corpus(TEXTS)))
    assert "\n" not in str(caught.value)
    assert left_behind(own_cache) == []


def test_a_cache_that_cannot_be_made_is_one_sentence(write_corpus, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written"):
        prepare(corpus(write_corpus(TEXTS)), cache=tmp_path / "file" / "cache")


def test_leftovers_of_a_killed_process_are_cleared(write_corpus, own_cache, tmp_path):
    cfg = corpus(write_corpus(TEXTS))
    name = prepare(cfg, cache=tmp_path / "probe").folder.name
    stale = own_cache / f".{name}.unfinished-999999"
    stale.mkdir()
    (stale / "train-00000.bin").write_bytes(b"half")
    assert prepare(cfg).status == "written"
    assert [path.name for path in left_behind(own_cache)] == [name]


def _prepare_in_process(cfg, barrier, queue):
    barrier.wait(timeout=60)
    phases = []
    done = prepare(cfg, report=lambda progress: phases.append(progress.phase))
    queue.put((os.getpid(), done.status, done.manifest.fingerprint, sorted(set(phases))))


def test_two_processes_at_once_share_one_result(write_corpus, own_cache):
    cfg = corpus(write_corpus(TEXTS * 4), tokenizer=BpeTokenizerConfig(vocab_size=400))
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(2), context.Queue()
    processes = [
        context.Process(target=_prepare_in_process, args=(cfg, barrier, queue)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    results = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    assert sorted(status for _, status, _, _ in results) == ["found", "written"]
    assert len({fingerprint for _, _, fingerprint, _ in results}) == 1
    folders = left_behind(own_cache)
    assert len(folders) == 1
    assert open_prepared(folders[0]).train.num_documents > 100


def test_progress_counts_documents_and_bytes(write_corpus):
    seen = []
    prepare(corpus(write_corpus(TEXTS), tokenizer=BpeTokenizerConfig(vocab_size=300)),
            report=seen.append)  # fmt: skip
    assert list(dict.fromkeys(p.phase for p in seen)) == ["tokenizer", "tokens"]
    last = seen[-1]
    assert (last.num_documents, last.num_bytes) == (45, len("".join(TEXTS)))
    assert last.total_bytes == last.num_bytes


def test_a_tokenizer_that_loses_text_is_refused_and_counted(write_corpus, tmp_path):
    """Capital letters and full stops are dropped by a vocabulary of small letters."""
    from tokenizers import Tokenizer, models

    letters = {c: n for n, c in enumerate("abcdefghijklmnopqrstuvwxyz ,0123456789\n")}
    Tokenizer(models.BPE({**letters, "<s>": 99}, [])).save(str(tmp_path / "t.json"))
    cfg = corpus(write_corpus(TEXTS), tokenizer={"kind": "file", "path": str(tmp_path / "t.json")})
    with pytest.raises(DataError, match=r"drops 180 of [\d,]+ characters .* raise data.max_lost"):
        prepare(cfg)
    with pytest.warns(UserWarning, match="drops 180 of"):
        done = prepare(cfg.replace(max_lost=0.1))
    assert done.manifest.coverage.dropped_characters == 180


def test_what_is_left_out_is_counted_in_the_manifest(tmp_path):
    lines = ['{"text": "one"}', '{"text": null}', '{"text": " "}', '{"text": "two"}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    done = prepare(corpus(str(tmp_path / "a.jsonl"), invalid="skip"))
    assert done.manifest.left_out == shards.LeftOut(blank=1, invalid=1)


def test_a_parquet_of_ids_is_taken_as_it_is(tmp_path):
    import pyarrow.parquet

    texts = ["one é", "two", "three"]
    ids = [[256, *text.encode(), 257] for text in texts]
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": ids}), tmp_path / "a.parquet")
    opened = open_prepared(prepare(corpus(str(tmp_path / "a.parquet"))).folder)
    assert documents(opened.train, opened.tokenizer) == texts[:2]
    assert documents(opened.validation, opened.tokenizer) == texts[2:]
    assert opened.manifest.train.text_bytes == len("one étwo".encode())
    with pytest.raises(DataError, match="holds ids of tokens; name the tokenizer"):
        prepare(corpus(str(tmp_path / "a.parquet"), tokenizer=BpeTokenizerConfig(vocab_size=300)))
    outside = pyarrow.table({"input_ids": [[1, 900]] * 3})
    pyarrow.parquet.write_table(outside, tmp_path / "b.parquet")
    with pytest.raises(DataError, match="id 900 is outside the tokenizer's 258 ids"):
        prepare(corpus(str(tmp_path / "b.parquet")))
