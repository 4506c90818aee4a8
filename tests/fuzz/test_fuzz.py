"""Mutated inputs: no traceback, no crash, no hang. `runner.py` runs as many as one likes."""

import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).parent / "runner.py"


def fuzz(number, seed, folder):
    words = [sys.executable, str(RUNNER), "--cases", str(number), "--seed", str(seed)]
    done = subprocess.run(
        [*words, "--keep", str(folder)], capture_output=True, text=True, timeout=3000
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_some_mutations(tmp_path):
    pytest.importorskip("gguf")
    fuzz(48, 1, tmp_path)


@pytest.mark.long
def test_many_mutations(tmp_path):
    pytest.importorskip("gguf")
    fuzz(504, 0, tmp_path)
