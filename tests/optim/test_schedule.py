import itertools
import math

import pytest

from gatelm.config import ConfigError
from gatelm.optim.adamw import AdamWConfig
from gatelm.optim.schedule import lr_factor, ramp


def factors(tree, total_steps):
    schedule = AdamWConfig.parse({"schedule": tree}).schedule
    return [lr_factor(schedule, step, total_steps) for step in range(total_steps + 1)]


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine", "wsd"])
def test_warmup_rises_in_equal_steps_and_reaches_the_peak(kind):
    values = factors({"kind": kind, "warmup_steps": 4}, 100)
    assert values[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_constant_stays_at_the_peak():
    assert set(factors({"kind": "constant"}, 10)) == {1.0}


def test_linear_is_a_line_to_the_floor():
    values = factors({"kind": "linear", "warmup_steps": 10, "min_lr_ratio": 0.2}, 110)
    assert values[60] == pytest.approx(0.6)
    assert values[110] == pytest.approx(0.2)
    drops = [a - b for a, b in itertools.pairwise(values[10:])]
    assert drops == pytest.approx([0.8 / 100] * 100)


def test_cosine_matches_its_formula():
    values = factors({"kind": "cosine", "warmup_steps": 10, "min_lr_ratio": 0.1}, 110)
    for step in range(10, 111):
        expected = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - 10) / 100))
        assert values[step] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("shape", "halfway"), [("linear", 0.5), ("sqrt", 1 - math.sqrt(0.5)), ("cosine", 0.5)]
)
def test_wsd_is_flat_then_falls(shape, halfway):
    values = factors({"kind": "wsd", "decay_fraction": 0.2, "decay_shape": shape}, 100)
    assert set(values[:81]) == {1.0}
    assert values[90] == pytest.approx(halfway)
    assert values[100] == pytest.approx(0.0)
    assert values[81] < 1


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine", "wsd"])
def test_warmup_longer_than_the_run_never_reaches_the_peak(kind):
    values = factors({"kind": kind, "warmup_steps": 50}, 20)
    assert values == [(step + 1) / 50 for step in range(21)]


@pytest.mark.parametrize("kind", ["linear", "cosine", "wsd"])
def test_the_rate_stays_at_its_floor_past_the_horizon(kind):
    schedule = AdamWConfig.parse({"schedule": {"kind": kind, "min_lr_ratio": 0.3}}).schedule
    assert lr_factor(schedule, 1000, 100) == pytest.approx(0.3)


def test_lr_scales_the_factor_by_the_peak():
    cfg = AdamWConfig.parse({"lr": 4e-3, "schedule": {"kind": "linear"}})
    assert cfg.lr_at(50, 100) == pytest.approx(2e-3)


def test_an_unknown_schedule_key_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'warmup_steps'"):
        AdamWConfig.parse({"schedule": {"kind": "cosine", "warm_up_steps": 3}})


def test_a_group_waits_and_then_rises():
    assert [ramp(step, 2, 4) for step in range(8)] == [0, 0, 0.25, 0.5, 0.75, 1, 1, 1]
    assert [ramp(step, 0, 0) for step in range(2)] == [1, 1]
