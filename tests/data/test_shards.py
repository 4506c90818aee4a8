import json
from itertools import pairwise

import numpy as np
import pytest

from gatelm.data import shards
from gatelm.data.config import ByteTokenizerConfig, CorpusConfig
from gatelm.data.errors import DataError
from gatelm.data.prepare import prepare
from gatelm.data.shards import SplitWriter, TokenStream, open_prepared


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_streams_read_across_shards(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(shards, "SHARD_TOKENS", 10)
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, 60_000, size=n) for n in (4, 12, 1, 9, 30, 2)]
    writer = SplitWriter(tmp_path, "train", dtype, bos_id=65_000)
    for ids in documents:
        writer.add(ids, text_bytes=7)
    info = writer.close()
    assert len(info.shards) == 4
    stream = TokenStream(tmp_path, info, dtype)
    flat = np.concatenate([np.append(65_000, ids) for ids in documents])
    assert (stream.num_tokens, stream.num_documents, stream.text_bytes) == (len(flat), 6, 42)
    for start in range(0, len(flat) + 1, 3):
        for stop in range(start, len(flat) + 9, 5):
            np.testing.assert_array_equal(stream.read(start, stop), flat[start:stop])
    np.testing.assert_array_equal(flat[stream.document_starts], 65_000)


@pytest.fixture
def prepared(write_corpus):
    source = write_corpus([f"document {n}" for n in range(5)])
    return prepare(CorpusConfig(source=source, tokenizer=ByteTokenizerConfig())).folder


def test_open_gives_back_the_text(prepared):
    opened = open_prepared(prepared)
    starts = [*opened.train.document_starts, opened.train.num_tokens]
    texts = [opened.tokenizer.decode(opened.train.read(a, b)) for a, b in pairwise(starts)]
    assert texts == [f"document {n}" for n in range(4)]
    assert opened.tokenizer.decode(opened.validation.read(0, 99)) == "document 4"


def test_a_truncated_shard(prepared):
    path = prepared / "train-00000.bin"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(
        DataError, match=r"damaged \(train-00000.bin has \d+ bytes instead of \d+\)"
    ):
        open_prepared(prepared)


def test_an_altered_shard(prepared):
    path = prepared / "validation-00000.bin"
    content = bytearray(path.read_bytes())
    content[4] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        DataError, match=r"validation-00000\.bin has other content than was written"
    ):
        open_prepared(prepared)


def test_a_missing_file(prepared):
    (prepared / "train-documents.bin").unlink()
    with pytest.raises(DataError, match=r"train-documents\.bin cannot be read.*prepare it again"):
        open_prepared(prepared)


def edit_manifest(prepared, **changes):
    path = prepared / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_an_altered_manifest(prepared):
    edit_manifest(prepared, bos="<|eos|>")
    with pytest.raises(DataError, match="does not have the fingerprint it states"):
        open_prepared(prepared)


def test_a_malformed_manifest(prepared):
    edit_manifest(prepared, dtype="int8")
    with pytest.raises(DataError, match=r"damaged \(manifest\.json: dtype"):
        open_prepared(prepared)
    (prepared / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="not valid JSON"):
        open_prepared(prepared)


def test_another_format(prepared):
    edit_manifest(prepared, format=99)
    with pytest.raises(DataError, match="format 99, this version reads 1"):
        open_prepared(prepared)


def test_no_prepared_corpus(tmp_path):
    with pytest.raises(DataError, match=r"no prepared corpus here .*gatelm data prepare"):
        open_prepared(tmp_path)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format": ' + "9" * 5000 + "}"])
def test_a_deep_or_huge_manifest_is_damaged(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match="is damaged"):
        shards.read_manifest(tmp_path)
