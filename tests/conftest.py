"""One thread a process: the tests run side by side, and small tensors gain nothing from more."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
