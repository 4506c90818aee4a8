import gzip
import json
import lzma
import sys

import pyarrow
import pyarrow.parquet
import pytest

from gatelm.data import readers
from gatelm.data.config import CorpusConfig
from gatelm.data.errors import DataError
from gatelm.data.readers import corpus_files, read_documents


def read(source, **settings):
    cfg = CorpusConfig(source=str(source), **settings)
    return [document.text for document in read_documents(cfg, corpus_files(cfg))]


def test_a_text_file_is_one_document(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffnaïve\r\ntext\n".encode())
    assert read(path) == ["naïve\r\ntext\n"]


def test_a_file_of_any_name_may_be_named(tmp_path):
    path = tmp_path / "notes"
    path.write_text("hello")
    assert read(path) == ["hello"]


def test_a_separator_cuts_across_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_CHUNK_BYTES", 5)
    texts = ["first é document", "second\nline", "third"]
    (tmp_path / "a.txt").write_text("<|end|>".join([*texts, " "]), encoding="utf-8")
    assert read(tmp_path / "a.txt", document_separator="<|end|>") == texts


def test_a_long_text_is_cut_at_line_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_CHUNK_BYTES", 7)
    monkeypatch.setattr(readers, "MAX_DOCUMENT_BYTES", 20)
    text = "".join(f"line {n}\n" for n in range(30)) + "y" * 50
    (tmp_path / "a.txt").write_text(text)
    pieces = read(tmp_path / "a.txt")
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 20
    assert all(piece.endswith("\n") for piece in pieces[:10])


def test_jsonl(tmp_path):
    path = tmp_path / "a.jsonl"
    records = [{"body": "one", "n": 1}, {"body": "two\n🦜"}, {"body": ""}]
    path.write_text("\n".join(json.dumps(r) for r in records) + "\n\n", encoding="utf-8")
    assert read(path, text_field="body") == ["one", "two\n🦜"]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"text": "x"', "line 2: not valid JSON"),
        ('{"body": "x"}', r"line 2: no key 'text' \(it has body\)"),
        ('{"text": 3}', "line 2: the value of 'text' is no text"),
        ("[1]", r"line 2: no key 'text' \(it has no keys\)"),
        (r'{"text": "\ud83e"}', "line 2: holds half of a surrogate pair"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, sentence):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(DataError, match=sentence):
        read(path)


def test_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": ["one", None, "two é", ""], "n": [1, 2, 3, 4]})
    pyarrow.parquet.write_table(table, path)
    assert read(path, invalid="skip") == ["one", "two é"]
    with pytest.raises(DataError, match=r"no column 'body' \(it has text, n\)"):
        read(path, text_field="body")
    with pytest.raises(DataError, match="the column 'n' holds int64, not text"):
        read(path, text_field="n")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_one_policy_for_null_and_blank_in_every_format(tmp_path, kind):
    texts = ["one", None, "  ", "two", ""]
    path = tmp_path / f"a.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    else:
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
    with pytest.raises(DataError, match=r"(line|row) 2: .*data.invalid=skip"):
        read(path)
    cfg, skipped = CorpusConfig(source=str(path), invalid="skip"), readers.Skipped()
    documents = read_documents(cfg, corpus_files(cfg), skipped)
    assert [document.text for document in documents] == ["one", "two"]
    assert skipped == readers.Skipped(blank=2, invalid=1)


def test_every_kind_of_invalid_line_is_skipped_and_counted(tmp_path):
    lines = ['{"text": "a"}', "{", "[" * 100_000, '{"text": 5}', '{"b": 1}', "9" * 5000]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, '{"text": "z"}']))
    cfg, skipped = CorpusConfig(source=str(tmp_path), invalid="skip"), readers.Skipped()
    documents = read_documents(cfg, corpus_files(cfg), skipped)
    assert [document.text for document in documents] == ["a", "z"]
    assert skipped.invalid == 5


def test_a_damaged_parquet_is_one_sentence(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match="not a readable parquet file"):
        read(tmp_path / "a.parquet")


def test_parquet_without_pyarrow_names_the_command(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match="needs pyarrow; install it: pip install"):
        read(tmp_path / "a.parquet")


def make_folder(tmp_path):
    for name, text in {
        "b.txt": "text",
        "a/code.py": "x = 1",
        "a/deep/notes.md": "# notes",
        ".git/config.txt": "hidden",
        "a/__pycache__/x.py": "cache",
        "image.png": "not read",
        "c.jsonl": '{"text": "line"}',
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_a_folder_is_read_by_extension_in_sorted_order(tmp_path):
    folder = make_folder(tmp_path)
    assert read(folder) == ["x = 1", "# notes", "text", "line"]
    assert read(folder, extensions=[".PY", "md"]) == ["x = 1", "# notes"]
    with pytest.raises(DataError, match="holds no rs files"):
        read(folder, extensions=["rs"])


def test_compressed_files(tmp_path):
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write("zipped")
    with lzma.open(tmp_path / "b.jsonl.xz", "wt") as file:
        file.write('{"text": "xz"}')
    assert read(tmp_path) == ["zipped", "xz"]
    (tmp_path / "c.txt.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"c\.txt\.gz: cannot be read"):
        read(tmp_path)


def test_bytes_that_are_not_utf8(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 noir")
    with pytest.raises(DataError, match=r"a\.txt: not UTF-8 text .*0xe9.*undecodable to replace"):
        read(tmp_path)
    assert read(tmp_path, undecodable="replace") == ["caf\ufffd noir"]
    (tmp_path / "a.txt").write_bytes(b'{"text": "\\ud83e!"}')
    (tmp_path / "a.txt").rename(tmp_path / "a.jsonl")
    assert read(tmp_path, undecodable="replace") == ["\ufffd!"]


def test_limits(tmp_path):
    for number in range(10):
        (tmp_path / f"{number}.txt").write_text("é" * 5)
    assert len(read(tmp_path)) == 10
    assert len(read(tmp_path, max_documents=3)) == 3
    assert len(read(tmp_path, max_bytes=35)) == 3
    assert len(read(tmp_path, max_bytes=40)) == 4
    assert len(read(tmp_path, max_bytes=1)) == 1


def test_nothing_to_read(tmp_path):
    with pytest.raises(DataError, match="neither an existing file or folder"):
        read(tmp_path / "none.txt")
    with pytest.raises(DataError, match="holds no text, code, jsonl or parquet files"):
        read(tmp_path)
    with pytest.raises(DataError, match="name a corpus, a file or a folder"):
        corpus_files(CorpusConfig())
