import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "long_context.py"


@pytest.fixture
def benchmark(monkeypatch):
    spec = importlib.util.spec_from_file_location("long_context", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "long_context", module)
    spec.loader.exec_module(module)
    return module


def test_the_shape_is_that_of_smollm2(benchmark):
    cfg = benchmark.config(30, ["sdpa-head"])
    assert (cfg.num_layers, cfg.hidden_dim, cfg.vocab_size) == (30, 576, 49152)
    assert [gate.site for gate in cfg.layer.gates] == ["sdpa"]


@pytest.mark.slow
def test_it_measures_each_length():
    command = [sys.executable, str(SCRIPT), "--lengths", "64,96", "--layers", "1", "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert [m["tokens"] for m in found] == [64, 96]
    assert found[0]["cache_mib"] == pytest.approx(2 * 3 * 64 * 4 * 64 / 2**20)
    assert all(m["cpu_seconds"] > 0 and m["resident_mib"] > 0 for m in found)
