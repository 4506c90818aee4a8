import pytest

from gatelm.config import ConfigError
from gatelm.data.errors import DataError
from gatelm.data.holdout import read_texts, split_documents
from gatelm.data.readers import Document


def split(texts, every):
    documents = [Document(text, "here.txt", len(text.encode())) for text in texts]
    out = {"train": [], "validation": []}
    for name, document in split_documents(documents, every):
        assert document.num_bytes == len(document.text.encode())
        out[name].append(document.text)
    return out


@pytest.mark.parametrize("count", [20, 39, 40, 41, 60])
def test_every_twentieth_document_is_held_out(count):
    texts = [f"text {n}" for n in range(count)]
    parts = split(texts, 20)
    assert parts["validation"] == texts[19::20]
    assert parts["train"] == [text for n, text in enumerate(texts) if n % 20 != 19]


@pytest.mark.parametrize("count", [2, 3, 19])
def test_few_documents_hold_out_the_last(count):
    texts = [f"text {n}" for n in range(count)]
    assert split(texts, 20) == {"train": texts[:-1], "validation": texts[-1:]}


@pytest.mark.parametrize(
    ("text", "tail"),
    [
        ("line\n" * 100, "line\n" * 5),
        ("word " * 100, "word " * 5),
        ("x" * 100, "x" * 5),
        ("a\n" + "é" * 98, "é" * 5),
    ],
)
def test_a_lone_document_is_cut_near_its_end(text, tail):
    assert split([text], 20) == {"train": [text[: -len(tail)]], "validation": [tail]}


@pytest.mark.parametrize("text", ["x", "x \n"])
def test_a_lone_document_too_short_to_cut_is_refused(text):
    with pytest.raises(DataError, match=r"here\.txt: the corpus is one document, too short"):
        split([text], 20)


def test_no_document_is_refused():
    with pytest.raises(DataError, match="the corpus is empty"):
        split([], 20)


def test_a_file_is_read_whole_and_a_corpus_by_its_held_out_part(tmp_path):
    (tmp_path / "a.txt").write_text("one document")
    (tmp_path / "b.jsonl").write_text('{"body": "two"}\n{"body": "three"}\n')
    assert read_texts(str(tmp_path / "a.txt")) == (["one document"], "all documents")
    assert read_texts(str(tmp_path / "b.jsonl"), text_field="body")[0] == ["two", "three"]
    texts, which = read_texts("python-stdlib")
    assert len(texts) > 10
    assert "20th" in which


def test_mistakes_name_the_option(tmp_path):
    with pytest.raises(ConfigError, match="--data: 'sotuu' is neither"):
        read_texts("sotuu")
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(ConfigError, match="--data"):
        read_texts(str(tmp_path / "empty.txt"))
