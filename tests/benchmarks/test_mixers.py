"""The chart of all mixers: nothing is left out, ratios are right, and it draws."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from gatelm.nn.block import LayerConfig
from gatelm.nn.mixers.config import MixerConfig

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "mixers.py"


@pytest.fixture
def benchmark(monkeypatch):
    spec = importlib.util.spec_from_file_location("mixers_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mixers_benchmark", module)
    spec.loader.exec_module(module)
    return module


def test_every_mixer_is_measured(benchmark):
    layers = [{"ffn": {"kind": "none"}, **layer} for layer in benchmark.LAYERS.values()]
    union, _ = get_args(MixerConfig)
    known = {get_args(cfg)[1].tag for cfg in get_args(union)}
    assert {LayerConfig.parse(layer).mixer.kind for layer in layers} == known


def test_each_mixer_runs(benchmark):
    for name in benchmark.LAYERS:
        benchmark.work(name, 5)()


def test_ratios_are_to_attention_and_to_half_the_text(benchmark):
    found = [
        benchmark.Measured("attention", 64, 2.0, 10.0),
        benchmark.Measured("linear", 64, 1.0, 20.0),
        benchmark.Measured("linear", 128, 3.0, 30.0),
    ]
    rows = benchmark.with_ratios(found)
    assert rows[1]["time_to_attention"] == 0.5
    assert rows[1]["memory_to_attention"] == 2.0
    assert rows[2]["time_to_attention"] is None
    assert rows[2]["time_growth"] == 3.0
    assert rows[2]["memory_growth"] == 1.5
    assert "3.00x" in benchmark.line(rows[2])


def test_one_chart_shows_all(benchmark, tmp_path):
    found = [
        benchmark.Measured(name, tokens, 1.0 + tokens, 2.0)
        for name in benchmark.LAYERS
        for tokens in (64, 128)
    ]
    benchmark.draw(benchmark.with_ratios(found), tmp_path)
    drawn = (tmp_path / "cost.svg").read_text()
    assert all(name in drawn for name in benchmark.LAYERS)
    assert (tmp_path / "cost.png").stat().st_size > 1000


@pytest.mark.slow
def test_a_stopped_run_goes_on(tmp_path):
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--mixers", "linear"]
    subprocess.run([*command, "--lengths", "64"], check=True, capture_output=True)
    first = json.loads((tmp_path / "cost.json").read_text())["results"]
    subprocess.run([*command, "--lengths", "64", "128"], check=True, capture_output=True)
    both = json.loads((tmp_path / "cost.json").read_text())["results"]
    assert both[0] == first[0]
    assert [m["tokens"] for m in both] == [64, 128]
