import json
import math
import os
from pathlib import Path

import pytest

from gatelm.io.files import WriteError, json_text, write_bytes, write_json, write_text


def test_a_file_is_replaced_in_one_step_and_flushed(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")
    seen, flushed = [], []
    rename, fsync = Path.replace, os.fsync

    def watched_rename(source, target):
        seen.append((path.read_text(), source.read_text(), len(flushed)))
        return rename(source, target)

    monkeypatch.setattr(Path, "replace", watched_rename)
    monkeypatch.setattr(os, "fsync", lambda number: (flushed.append(number), fsync(number)))
    write_text(path, "new: é\r\n")
    assert seen == [("old", "new: é\r\n".replace("\r\n", "\n"), 1)]
    assert len(flushed) == 2
    assert path.read_bytes() == "new: é\r\n".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_names_the_path(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("old")

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match=r"file: cannot be written \(No space left on device\)"):
        write_bytes(path, b"new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_has_no_number_that_is_not_finite(tmp_path):
    value = {"a": math.nan, "b": [1.5, -math.inf, (math.inf, 2)], "c": "é"}
    assert json.loads(json_text(value)) == {"a": None, "b": [1.5, None, [None, 2]], "c": "é"}
    write_json(tmp_path / "file", value)
    assert (tmp_path / "file").read_text() == json_text(value, indent=1) + "\n"
    assert "é" in json_text(value)
