"""`train.precision: auto`: what it stands for, and that a run keeps it."""

import json
import os
import subprocess
import sys

import pytest
import torch

from gatelm.config.load import read_yaml
from gatelm.train import precision as precision_module
from gatelm.train.config import RunConfig
from gatelm.train.precision import ProductSpeed, choose, product_speed, resolved
from gatelm.train.trainer import train

WITHOUT_BF16 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GATELM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def undecided(tiny):
    return tiny({"train": {"precision": "auto", "total_steps": 4, "stop_at_step": 2}})


def measured(monkeypatch, speed):
    monkeypatch.setattr(precision_module, "product_speed", lambda *_: speed)


def test_auto_is_the_default_and_bf16_must_pay():
    assert RunConfig.model_fields["train"].annotation.model_fields["precision"].default == "auto"
    assert ProductSpeed(fp32=1.0, bf16=4.0).best == "bf16"
    assert ProductSpeed(fp32=1.0, bf16=1.2).best == "fp32"
    assert ProductSpeed(fp32=80.0, bf16=2.0).best == "fp32"


def test_a_stated_precision_is_not_measured(tiny, monkeypatch):
    monkeypatch.setattr(precision_module, "product_speed", lambda *_: pytest.fail("measured"))
    for stated in ("fp32", "bf16"):
        assert resolved(tiny({"train": {"precision": stated}})).train.precision == stated


def test_the_measurement_is_remembered(undecided, own_cache, monkeypatch):
    first = product_speed(undecided)
    assert first.fp32 > 1e6
    assert first.bf16 > 1e4
    assert list(json.loads((own_cache / "products.json").read_text()))
    monkeypatch.setattr(precision_module, "_measured", lambda *_: pytest.fail("measured again"))
    assert product_speed(undecided) == first


def test_a_damaged_memory_is_measured_anew(undecided, own_cache):
    own_cache.mkdir()
    (own_cache / "products.json").write_text("[1, 2")
    assert product_speed(undecided).fp32 > 1e6


def test_measuring_changes_no_weights_random_numbers_or_threads(undecided):
    torch.manual_seed(5)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    choose(undecided, threads=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_a_run_keeps_what_it_began_with(undecided, tmp_path, monkeypatch, fake_analysis):
    measured(monkeypatch, ProductSpeed(fp32=1.0, bf16=9.0))
    folder = tmp_path / "run"
    assert train(undecided, folder).status == "stopped"
    assert read_yaml(folder / "config.yaml")["train"]["precision"] == "bf16"
    measured(monkeypatch, ProductSpeed(fp32=9.0, bf16=1.0))  # another machine
    going_on = undecided.replace(train=undecided.train.replace(stop_at_step=None))
    result = train(going_on, folder)
    assert (result.status, result.precision) == ("finished", "bf16")
    assert json.loads((folder / "result.json").read_text())["precision"] == "bf16"
    assert train(going_on, tmp_path / "other").precision == "fp32"


def on_a_cpu_without_bf16(code, tmp_path):
    env = {**os.environ, **WITHOUT_BF16, "GATELM_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_demo_trains_in_fp32_where_bf16_is_emulated(tmp_path):
    code = (
        "from gatelm.study.planning.plan import plan\n"
        "from gatelm.study.planning.spec import load_study\n"
        "runs = plan(load_study('demo')).runs\n"
        "print(len(runs), {run.config.train.precision for run in runs})"
    )
    assert on_a_cpu_without_bf16(code, tmp_path) == "45 {'fp32'}"


def test_every_shipped_run_is_fp32_there(tmp_path):
    code = (
        "from gatelm.cli.recipe import load_run\n"
        "from gatelm.config.load import packaged_recipes\n"
        "from gatelm.train.precision import resolved\n"
        "runs = {p.stem for p in (packaged_recipes() / 'runs').glob('*.yaml')} - {'add-gate'}\n"
        "small = {n for n in runs if not n.endswith(('-gpu', '-paper'))}\n"
        "print({resolved(load_run(f'runs/{n}')[0]).train.precision for n in small})"
    )
    assert on_a_cpu_without_bf16(code, tmp_path) == "{'fp32'}"


def test_no_recipe_states_a_precision():
    from gatelm.config.load import packaged_recipes

    for path in packaged_recipes().rglob("*.yaml"):
        assert "precision: bf16" not in path.read_text(), path


@pytest.mark.skipif(
    not torch.cpu._is_amx_tile_supported() or "ONEDNN_MAX_CPU_ISA" in os.environ,
    reason="a CPU with bf16 matrix instructions (AMX)",
)
def test_the_measurement_finds_the_matrix_instructions_that_the_cpu_has(tmp_path, monkeypatch):
    from gatelm.cli.recipe import load_run

    cfg, _ = load_run("text")
    speed = product_speed(cfg, threads=1)
    assert speed.bf16 > speed.fp32
