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
def test_each_length_is_measured_once_and_kept(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, str(SCRIPT), str(out), "--layers", "1", "--lengths"]

    def table(lengths: str) -> str:
        done = subprocess.run([*command, lengths], check=True, capture_output=True, text=True)
        assert done.stderr == ""
        return done.stdout

    table("64")
    (file,) = (out / "runs").iterdir()
    before = file.read_bytes()
    text = table("64,96")
    assert file.read_bytes() == before
    found = [json.loads(f.read_text()) for f in sorted((out / "runs").iterdir())]
    assert [m["tokens"] for m in found] == [64, 96]
    assert found[0]["cache_mib"] == pytest.approx(2 * 3 * 64 * 4 * 64 / 2**20)
    assert all(m["cpu_seconds"] > 0 and m["resident_mib"] > m["added_mib"] > 0 for m in found)
    assert text.splitlines()[-2].startswith("| 64 |")
    (out / "reading.md").write_text("# Mine\n")
    table("64,96,80")
    readme = (out / "README.md").read_text()
    assert readme.startswith("# Mine\n\n## 1 layers, no gate, chunks of 1024, 1 thread(s)")
    assert [row.split(" | ")[0] for row in readme.splitlines()[-3:]] == ["| 64", "| 80", "| 96"]
