"""One thread a process: the tests run side by side, and small tensors gain nothing from more.

`from helpers import ...` finds tests/helpers.py in every folder of tests.
"""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_terminal_summary(terminalreporter):
    """Say which golden losses this machine was held to."""
    import torch

    version = ".".join(torch.__version__.split(".")[:2])
    name = f"losses-torch-{version}-{torch.backends.cpu.get_cpu_capability()}.json"
    there = (pathlib.Path(__file__).parent / "golden" / name).is_file()
    terminalreporter.write_line(f"golden losses: {name if there else f'none ({name} is missing)'}")
