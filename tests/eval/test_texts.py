import pytest

from gatelm.config import ConfigError
from gatelm.eval.texts import read_texts


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
