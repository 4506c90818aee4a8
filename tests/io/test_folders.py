"""Folders are written whole or not at all, and never over files of others."""

import subprocess
import sys
import textwrap

import pytest

from gatelm.config import ConfigError
from gatelm.io.files import WriteError
from gatelm.io.folders import refuse_foreign, whole_folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_there_when_all_went_well(tmp_path):
    with whole_folder(tmp_path / "out") as unfinished:
        (unfinished / "a").write_text("new")
        assert not (tmp_path / "out").exists()
    assert names(tmp_path) == ["out"]

    def fail():
        with whole_folder(tmp_path / "out") as unfinished:
            (unfinished / "a").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (tmp_path / "out" / "a").read_text() == "new"
    assert names(tmp_path) == ["out"]


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from gatelm.io.folders import whole_folder
    with whole_folder(Path(sys.argv[1])) as unfinished:
        (unfinished / "a").write_text("half")
        print("there", flush=True)
        if sys.argv[2] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.stdin.read()
"""


def begun(target, how):
    line = [sys.executable, "-c", textwrap.dedent(KILLED), str(target), how]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "there\n"
    return process


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    begun(tmp_path / "out", "killed").communicate()
    living = begun(tmp_path / "out", "alive")
    try:
        assert len(names(tmp_path)) == 1, "the second attempt removed what the first one left"
        with whole_folder(tmp_path / "out") as unfinished:
            (unfinished / "a").write_text("mine")
        assert len(names(tmp_path)) == 2
        assert (tmp_path / "out" / "a").read_text() == "mine"
    finally:
        living.communicate("")
    assert names(tmp_path) == ["out"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(WriteError, match="file/out: cannot be written"),
        whole_folder(tmp_path / "file" / "out"),
    ):
        pass


def test_files_of_others_are_not_written_over(tmp_path):
    refuse_foreign(tmp_path / "new", "a run", "run.json", ["config.yaml"])
    (tmp_path / "config.yaml").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds config.yaml but no run.json, so it is not a run"):
        refuse_foreign(tmp_path, "a run", "run.json", ["model", "config.yaml"])
    with pytest.raises(ConfigError, match="is a file, not a folder for a run"):
        refuse_foreign(tmp_path / "config.yaml", "a run", "run.json", [])
    (tmp_path / "run.json").touch()
    refuse_foreign(tmp_path, "a run", "run.json", ["config.yaml"])
