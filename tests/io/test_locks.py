import os
import subprocess
import sys

import pytest

from gatelm.config import ConfigError
from gatelm.io.locks import exclusive, locked

HOLD = """
import sys
from pathlib import Path
from gatelm.io.locks import exclusive
with exclusive(Path(sys.argv[1]), "training"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_held_folder_is_refused_until_its_process_dies(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-c", HOLD, str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        sentence = rf"run: another process is training in this folder \(process {other.pid}\); wait"
        with pytest.raises(ConfigError, match=sentence), exclusive(folder, "training"):
            pass
        other.kill()
    with exclusive(folder, "training"):
        assert (folder / ".lock").read_text() == str(os.getpid())


def test_who_does_not_raise_waits(tmp_path):
    folder = tmp_path / "run"
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        asked = []

        def let_go(holder):
            asked.append(int(holder))
            other.kill()

        with locked(folder / ".lock", when_held=let_go):
            assert other.wait() != 0
    assert asked == [other.pid]
