import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "analysis_memory.py"


@pytest.fixture
def benchmark(monkeypatch):
    spec = importlib.util.spec_from_file_location("analysis_memory", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "analysis_memory", module)
    spec.loader.exec_module(module)
    return module


def test_both_sides_compute_the_same_numbers(benchmark):
    rows = benchmark.layer_linear(50)()
    max_logit, (first, entropy, without_first, importance, largest) = benchmark.layer_matrix(50)()
    queries = torch.arange(50, 0, -1)
    for ours, theirs in (
        (rows.first_weight, first),
        (rows.entropy, entropy),
        (rows.entropy_without_first, without_first),
        (rows.importance, importance / queries),
        (rows.max_weight, largest),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert rows.max_logit.shape == max_logit.shape


def test_what_does_not_fit_is_not_run(benchmark):
    found = benchmark.measure("model", "matrices", 4096, 1, memory_gib=8.0)
    assert found.peak_mib is None
    assert found.matrices_mib == pytest.approx(17_280)
    assert "not run: its matrices alone take 17,280 MiB" in benchmark.line(found)


@pytest.mark.slow
def test_the_command_prints_json():
    options = ["--part", "layer", "--lengths", "64", "--threads", "1", "--json"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=True
    )
    results = json.loads(done.stdout)["results"]
    assert [r["method"] for r in results] == ["gatelm", "matrices"]
    assert all(r["cpu_seconds"] > 0 and r["peak_mib"] >= 0 for r in results)
