import statistics

import numpy as np
import pytest

from gatelm.study.results.spikes import RULES, SpikeRule, adjusted, find_spikes, flagged, stability
from gatelm.train.watching.monitors import SpikeMonitor


def noise(points, seed=0, scale=0.02):
    """A flat curve whose noise never comes near 6 standard deviations of a window."""
    return 2.0 + scale * np.random.default_rng(seed).uniform(-1, 1, points)


def planted(points, at, height):
    """Spikes on a flat curve, far enough apart that no window holds two but where asked."""
    values = noise(points)
    values[at] += height
    return np.arange(points) * 36, values


def naive(values, rule):
    """One value at a time, with the standard library's statistics."""
    out, seen = [], []
    for value in values:
        if not np.isfinite(value):
            out.append(True)
            continue
        last = seen[-rule.window :]
        full = len(last) == rule.window
        if rule.above == "std":
            limit = statistics.fmean(last) + rule.threshold * statistics.pstdev(last) if full else 0
        elif rule.above == "mean":
            limit = rule.threshold * statistics.fmean(last) if full else 0
        elif rule.above == "median":
            limit = statistics.median(last) + rule.threshold if full else 0
        else:
            both = [*seen, value][-rule.window :]
            full = len(both) == rule.window
            limit = rule.threshold * statistics.fmean(both[:-25]) if full else 0
            value = statistics.fmean(both[-25:])
        out.append(full and value > limit)
        seen.append(value if rule.above != "moving mean" else both[-1])
    return out


@pytest.mark.parametrize("above", ["std", "mean", "median", "moving mean"])
def test_each_rule_agrees_with_one_value_at_a_time(above):
    values = noise(400, scale=0.3)
    values[[150, 220, 300]] += [1.5, 4.0, np.nan]
    values[310] = np.inf
    values[340:380] += 30
    rule = SpikeRule(
        "", above, 40, {"std": 3.0, "mean": 1.5, "median": 0.4, "moving mean": 1.2}[above]
    )
    found = flagged(values, rule)
    assert found.tolist() == naive(values, rule)
    assert found[300]
    assert found[310]
    assert 4 < found.sum() < 200


def test_the_rule_of_training_is_the_same():
    values = noise(600)
    values[[200, 210, 500]] += 1.0
    values[400] = np.nan
    monitor = SpikeMonitor(128, 6.0)
    assert flagged(values, RULES["olmo-core"]).tolist() == [monitor.add(v) for v in values]


def test_planted_spikes_are_counted_exactly():
    """As in a published pair of curves: 72 of 9,851 points in 57 events, and 2 of 19,774."""
    alone = np.arange(42) * 180 + 300
    pairs = np.arange(15) * 150 + 42 * 180 + 300
    at = np.concatenate([alone, pairs, pairs + 3])
    heights = np.concatenate([np.full(57, 1.0), np.full(15, 3.0)])
    steps, values = planted(10_000, at, heights)
    found = find_spikes(
        steps, values, RULES["olmo-core"], from_step=int(steps[149]), merge_steps=200
    )
    assert (found.points, found.flags, len(found.events)) == (9_851, 72, 57)
    assert f"{100 * found.score:.3f}" == "0.731"
    assert sorted(event.flags for event in found.events) == [1] * 42 + [2] * 15
    steps, values = planted(19_986, [7_000, 15_000], 0.5)
    found = find_spikes(
        steps, values, RULES["olmo-core"], from_step=int(steps[212]), merge_steps=200
    )
    assert (found.points, found.flags, len(found.events)) == (19_774, 2, 2)
    assert f"{100 * found.score:.3f}" == "0.010"


def test_nothing_is_found_in_noise_or_before_the_window_is_full():
    values = noise(2_000)
    for name, rule in RULES.items():
        assert not flagged(values, rule).any(), name
    values[127] = 100.0
    assert not flagged(values, RULES["olmo-core"])[:128].any()
    values = noise(200)
    values[128] = 100.0
    assert flagged(values, RULES["olmo-core"]).nonzero()[0].tolist() == [128]
    assert not flagged(noise(5), RULES["olmo2"]).any()
    assert not flagged(np.array([]), RULES["olmo2"]).any()


def test_what_is_not_finite_is_a_spike_and_blinds_nothing():
    values = noise(400)
    values[[10, 200, 201]] = [np.nan, np.inf, -np.inf]
    values[203] += 1.0
    assert flagged(values, RULES["olmo-core"]).nonzero()[0].tolist() == [10, 200, 201, 203]
    found = find_spikes(np.arange(400), values, RULES["olmo-core"], merge_steps=0)
    assert [(e.first_step, e.last_step, e.flags) for e in found.events] == [
        (10, 10, 1),
        (200, 201, 2),
        (203, 203, 1),
    ]
    assert found.events[0].peak is None
    assert found.events[2].peak_step == 203


def test_a_plateau_has_to_last():
    values = noise(2_000)
    values[800:860] *= 20
    assert not flagged(values, RULES["mosaic"]).any()
    values[1_500:1_700] *= 40
    found = flagged(values, RULES["mosaic"]).nonzero()[0]
    assert len(found) >= 100
    assert 1_500 <= found[0] <= 1_525


def test_stability_measures_the_excess_over_the_trailing_median():
    values = np.full(300, 2.0)
    values[[150, 200]] = [2.7, 10.0]
    values[280:] = 1.5
    values[250] = np.nan
    found = stability(np.arange(300) * 10, values)
    assert found.max_excess == pytest.approx(8.0)
    assert found.max_excess_step == 2_000
    assert found.points_above == {"0.1": 2, "0.5": 2, "1": 1}
    assert found.not_finite == 1
    assert (found.last_mean, found.last_median) == (1.5, 1.5)
    later = stability(np.arange(300) * 10, values, from_step=2_010)
    assert later.max_excess == pytest.approx(0.0)
    assert later.not_finite == 1
    short = stability(np.array([5]), np.array([np.nan]))
    assert (short.max_excess, short.last_mean, short.not_finite) == (None, None, 1)


def test_rules_can_be_adjusted():
    assert adjusted(RULES["olmo-core"], 64, None).window == 64
    assert adjusted(RULES["olmo-core"], None, 3.0).threshold == 3.0
    with pytest.raises(ValueError, match="2 at least"):
        adjusted(RULES["olmo-core"], 1, None)
    with pytest.raises(ValueError, match="26 at least"):
        adjusted(RULES["mosaic"], 25, None)
