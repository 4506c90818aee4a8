"""How a machine is divided."""

from __future__ import annotations

import pytest
import torch

from gatelm.config import ConfigError
from gatelm.study.running import resources
from gatelm.study.running.resources import Resources, share


@pytest.fixture
def machine(monkeypatch):
    def make(cpus, gpu=False):
        monkeypatch.setattr(resources, "available_cpus", lambda: cpus)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)

    return make


def test_cpus_are_shared(machine, make_plan):
    many, one = make_plan(seeds=range(9)), make_plan(arms={"none": {}}, seeds=[0])
    machine(cpus=2)
    assert share(many) == Resources(2, 1)
    assert share(one) == Resources(1, 2)
    assert share(many, workers=4) == Resources(4, 1)
    machine(cpus=64)
    assert share(many) == Resources(8, 8)
    with pytest.raises(ConfigError, match="at least one worker"):
        share(many, workers=0)


def test_a_gpu_has_one_run_at_a_time_unless_told_otherwise(machine, make_plan):
    machine(cpus=16, gpu=True)
    assert share(make_plan()) == Resources(1, 16, "cuda")
    assert share(make_plan(), workers=4) == Resources(4, 4, "cuda")
    on_cpu = make_plan(arms={"none": {"train.device": "cpu"}})
    assert share(on_cpu) == Resources(2, 8, "cpu")
