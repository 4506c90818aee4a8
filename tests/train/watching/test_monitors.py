import math
import random
import statistics

import pytest

from gatelm.train.watching.monitors import SpikeMonitor, Throughput


def naive_spikes(values, window, threshold):
    """Flags by the definition, on the whole history at once."""
    flags, finite = [], []
    for value in values:
        recent = finite[-window:]
        if not math.isfinite(value):
            flags.append(True)
            continue
        full = len(recent) == window
        limit = statistics.mean(recent) + threshold * statistics.pstdev(recent) if full else 0
        flags.append(full and value > limit)
        finite.append(value)
    return flags


def test_the_rule_matches_its_definition():
    rng = random.Random(0)
    values = [rng.gauss(3, 0.1) + (2.0 if i % 37 == 36 else 0.0) for i in range(300)]
    values[150] = float("nan")
    values[170] = float("inf")
    monitor = SpikeMonitor(window_steps=20, threshold_std=4)
    flags = [monitor.add(value) for value in values]
    assert flags == naive_spikes(values, 20, 4)
    assert 3 <= sum(flags) < 20
    assert monitor.score == sum(flags) / 300


def test_nothing_is_flagged_before_the_window_is_full():
    monitor = SpikeMonitor(window_steps=8)
    assert not any(monitor.add(v) for v in [1.0, 1.0, 1.0, 50.0, 1.0, 1.0, 1.0, 90.0])


def test_only_the_upper_side_is_a_spike():
    monitor = SpikeMonitor(window_steps=4)
    for value in [3.0, 3.1, 2.9, 3.0]:
        monitor.add(value)
    assert not monitor.is_spike(-100.0)
    assert monitor.is_spike(100.0)


def test_a_nan_is_a_spike_and_leaves_the_window_alone():
    monitor = SpikeMonitor(window_steps=4)
    for value in [3.0, 3.1, 2.9, 3.0]:
        monitor.add(value)
    assert monitor.add(float("nan"))
    assert not any(monitor.add(v) for v in [3.0, 3.05, 2.95, 3.0])
    assert monitor.spikes == 1


def test_a_value_not_accepted_does_not_enter_the_window():
    monitor = SpikeMonitor(window_steps=4)
    for value in [3.0, 3.1, 2.9, 3.0]:
        monitor.add(value)
    assert all(monitor.add(100.0, accept=False) for _ in range(10))


def test_the_window_survives_a_round_trip():
    one = SpikeMonitor(window_steps=4)
    for value in [3.0, 3.1, 2.9, 3.0, 9.0]:
        one.add(value)
    two = SpikeMonitor(window_steps=4)
    two.load_state_dict(one.state_dict())
    for value in [3.0, 12.0, float("nan"), 3.0, 30.0]:
        assert one.add(value) == two.add(value)
    assert two.state_dict() == one.state_dict()


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_throughput_leaves_pauses_out():
    clock = Clock()
    throughput = Throughput(clock)
    clock.now += 2
    throughput.add_tokens(100)
    with throughput.paused():
        clock.now += 50
    clock.now += 3
    throughput.add_tokens(100)
    assert throughput.lap() == pytest.approx(200 / 5)
    assert throughput.training_seconds == pytest.approx(5)


def test_a_lap_starts_afresh_and_seconds_survive_a_resume():
    clock = Clock()
    throughput = Throughput(clock)
    clock.now += 2
    throughput.add_tokens(10)
    throughput.lap()
    clock.now += 1
    throughput.add_tokens(30)
    assert throughput.lap() == pytest.approx(30)
    resumed = Throughput(clock)
    clock.now += 7
    resumed.load_state_dict(throughput.state_dict())
    clock.now += 1
    assert resumed.training_seconds == pytest.approx(11)
