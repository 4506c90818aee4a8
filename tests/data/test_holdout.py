import pytest

from gatelm.data.errors import DataError
from gatelm.data.holdout import split_documents
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
