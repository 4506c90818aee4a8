"""A run's speed from a few real steps, or from its products where it is too large."""

import json

import pytest

from gatelm.study.planning.vocabulary import sized
from gatelm.train import speed as speed_module
from gatelm.train.precision import ProductSpeed
from gatelm.train.speed import UTILISATION, run_flops, training_flops, training_speed


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GATELM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_small_runs_are_timed_once(tiny, own_cache, monkeypatch):
    cfg = tiny()
    first = training_speed(cfg, sized(cfg), threads=1)
    assert first.measured
    assert first.flops_per_second > 0
    assert len(json.loads((own_cache / "steps.json").read_text())) == 1
    monkeypatch.setattr(speed_module, "_time_steps", lambda _: pytest.fail("timed again"))
    other_seed = cfg.replace(seed=9, train=cfg.train.replace(total_steps=1000))
    assert training_speed(other_seed, sized(cfg), threads=1) == first


def test_large_runs_are_guessed(tiny, monkeypatch):
    monkeypatch.setattr(speed_module, "product_speed", lambda *_: ProductSpeed(fp32=1e3, bf16=5e3))
    monkeypatch.setattr(speed_module, "_time_steps", lambda _: pytest.fail("timed"))
    cfg = tiny()
    speed = training_speed(cfg, sized(cfg), threads=1)
    assert not speed.measured
    assert speed.flops_per_second == UTILISATION * 1e3
    half = cfg.replace(train=cfg.train.replace(precision="bf16"))
    assert training_speed(half, sized(cfg), threads=1).flops_per_second == UTILISATION * 5e3


def test_processes_are_timed_side_by_side(tiny):
    cfg = tiny()
    assert training_speed(cfg, sized(cfg), threads=1, processes=2).measured


def test_validations_and_looks_take_time_too(tiny):
    cfg = tiny()
    model = sized(cfg)
    more = cfg.replace(train=cfg.train.replace(eval_every_steps=1, health_every_steps=2))
    causal = cfg.replace(train=cfg.train.replace(final_causal="gates"))
    assert training_flops(cfg, model) == training_flops(more, model)
    assert training_flops(cfg, model) < run_flops(cfg, model)
    assert run_flops(cfg, model) < run_flops(more, model)
    assert run_flops(cfg, model) < run_flops(causal, model)
