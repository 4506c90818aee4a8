import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """No test reads or writes the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("GATELM_CACHE", str(folder))
    return folder


@pytest.fixture
def write_corpus(tmp_path):
    """A folder with one text file a document; returns its path as text."""

    def write(texts, name="corpus"):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for number, text in enumerate(texts):
            (folder / f"{number:04d}.txt").write_text(text, encoding="utf-8")
        return str(folder)

    return write
