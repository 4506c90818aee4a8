"""Loss spikes in a curve of recorded values, by the rules that others use.

A value that is not finite is a spike by every rule and never enters a window. Windows count
recorded values, not steps: curves recorded at different densities are to be compared by rates and
by events, not by counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Above = Literal["std", "mean", "moving mean", "median"]

EXCESS_WINDOW = 100
"""Number of values before a point; the excess is taken over their median."""

EXCESSES = (0.1, 0.5, 1.0)
"""Distances above that median at which points are counted, in the unit of the curve."""

_BLOCK = 1 << 22
_SHORT = 25
"""Number of values in the moving mean of MosaicML's detector."""


@dataclass(frozen=True)
class SpikeRule:
    """Rule for spikes. std: value > mean + threshold * population std of the last `window` values.

    mean: value > threshold * their mean. median: value > their median + threshold. moving mean: the
    mean of the last 25 values > threshold * that of the rest of the last `window`. Nothing is a
    spike before the window is full, nor unless `at_least` values in a row are.
    """

    definition: str
    above: Above
    window: int
    threshold: float
    at_least: int = 1


RULES: dict[str, SpikeRule] = {
    "olmo-core": SpikeRule(
        "above the mean of the previous 128 values by more than 6 population standard deviations "
        "(StabilityMonitorCallback of OLMo-core; the rule of gatelm's own training)",
        "std",
        128,
        6.0,
    ),
    "olmo2": SpikeRule(
        "above the mean of the previous 1,000 values by more than 7 standard deviations (OLMo 2, "
        "arXiv 2501.00656)",
        "std",
        1000,
        7.0,
    ),
    "mosaic": SpikeRule(
        "the mean of the last 25 values is more than 5 times that of the 475 before them, for at "
        "least 100 values in a row (after MosaicML's LossSpikeIntervention)",
        "moving mean",
        500,
        5.0,
        100,
    ),
    "mosaic-outlier": SpikeRule(
        "more than twice the mean of the previous 100 values (after KillLossSpike of MosaicML's "
        "LLM Foundry, without its patience)",
        "mean",
        100,
        2.0,
    ),
    "palm": SpikeRule(
        "above the median of the previous 100 values by more than 0.5: PaLM (arXiv 2204.02311) "
        "counts by eye and gives no number, so this one is ours",
        "median",
        100,
        0.5,
    ),
}


@dataclass(frozen=True)
class Event:
    """Event: neighbouring flags, which are counted as one."""

    first_step: int
    last_step: int
    flags: int
    peak_step: int
    peak: float | None
    """Largest finite value; None if there is none."""


@dataclass(frozen=True)
class Spikes:
    """Spikes that a rule finds in a curve; `score` is the share of flagged points."""

    rule: str
    points: int
    flags: int
    score: float
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Stability:
    """Stability without rules: how far a curve rises above earlier values, and its end."""

    not_finite: int
    max_excess: float | None
    max_excess_step: int | None
    points_above: dict[str, int]
    last_mean: float | None
    """Mean of the finite values in the last twentieth of the steps."""
    last_median: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def find_spikes(
    steps: np.ndarray,
    values: np.ndarray,
    rule: SpikeRule,
    *,
    name: str = "",
    from_step: int = 0,
    merge_steps: int = 0,
) -> Spikes:
    """Find spikes at steps of `from_step` or later; earlier values only fill windows.

    merge_steps: flags no further apart belong to one event, as do neighbouring points.
    """
    counted = steps >= from_step
    flags = flagged(values, rule) & counted
    events = tuple(_events(steps, values, flags, merge_steps))
    points, found = int(counted.sum()), int(flags.sum())
    return Spikes(name, points, found, found / points if points else 0.0, events)


def flagged(values: np.ndarray, rule: SpikeRule) -> np.ndarray:
    """Mark the values that are spikes."""
    finite = np.isfinite(values)
    over = ~finite
    over[finite] = _over(values[finite], rule)
    if rule.at_least == 1:
        return over
    runs = np.diff(np.concatenate(([0], over.astype(np.int8), [0])))
    kept = ~finite
    for begin, end in zip(np.flatnonzero(runs == 1), np.flatnonzero(runs == -1), strict=True):
        if end - begin >= rule.at_least:
            kept[begin:end] = True
    return kept


def stability(steps: np.ndarray, values: np.ndarray, *, from_step: int = 0) -> Stability:
    """Measure the largest excess over the trailing median, points above it, and the end."""
    finite = np.isfinite(values)
    kept, at = values[finite], steps[finite]
    excess = _against(kept, EXCESS_WINDOW, lambda w: np.median(w, axis=1))
    excess[at < from_step] = -np.inf
    best = int(excess.argmax()) if len(excess) and excess.max() > -np.inf else None
    span = steps[-1] - (steps[-1] - steps[0]) / 20 if len(steps) else 0
    last = kept[at >= span]
    return Stability(
        not_finite=int((~finite & (steps >= from_step)).sum()),
        max_excess=None if best is None else float(excess[best]),
        max_excess_step=None if best is None else int(at[best]),
        points_above={f"{limit:g}": int((excess > limit).sum()) for limit in EXCESSES},
        last_mean=float(last.mean()) if len(last) else None,
        last_median=float(np.median(last)) if len(last) else None,
    )


def adjusted(rule: SpikeRule, window: int | None, threshold: float | None) -> SpikeRule:
    """Return a rule with another window or threshold.

    Raises:
        ValueError: a window without room for two values, or for a moving mean's.
    """
    changed = replace(
        rule,
        window=rule.window if window is None else window,
        threshold=rule.threshold if threshold is None else threshold,
    )
    least = _SHORT + 1 if rule.above == "moving mean" else 2
    if changed.window < least:
        raise ValueError(f"the window of {changed.window} values is too short: {least} at least")
    return changed


def _over(values: np.ndarray, rule: SpikeRule) -> np.ndarray:
    """Mark spikes among finite values."""
    k = rule.threshold
    match rule.above:
        case "std":
            limit: Callable[[np.ndarray], np.ndarray] = lambda w: w.mean(1) + k * w.std(1)  # noqa: E731
        case "mean":
            limit = lambda w: k * w.mean(1)  # noqa: E731
        case "median":
            limit = lambda w: np.median(w, axis=1) + k  # noqa: E731
        case "moving mean":
            return _moving_mean_over(values, rule)
    return _against(values, rule.window, limit) > 0


def _against(
    values: np.ndarray,
    window: int,
    limit: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Return each value minus the limit by the `window` values before it; -inf at the start."""
    out = np.full(len(values), -np.inf)
    if len(values) <= window:
        return out
    windows = sliding_window_view(values, window)[:-1]
    rows = max(1, _BLOCK // window)
    for start in range(0, len(windows), rows):
        block = windows[start : start + rows]
        place = slice(window + start, window + start + len(block))
        out[place] = values[place] - limit(block)
    return out


def _moving_mean_over(values: np.ndarray, rule: SpikeRule) -> np.ndarray:
    """Compare the mean of the last 25 values, including this one, with that of earlier ones."""
    out = np.zeros(len(values), dtype=bool)
    if len(values) >= rule.window:
        windows = sliding_window_view(values, rule.window)
        rows = max(1, _BLOCK // rule.window)
        for start in range(0, len(windows), rows):
            block = windows[start : start + rows]
            fast, slow = block[:, -_SHORT:].mean(1), block[:, :-_SHORT].mean(1)
            first = rule.window - 1 + start
            out[first : first + len(block)] = fast > rule.threshold * slow
    return out


def _events(
    steps: np.ndarray, values: np.ndarray, flags: np.ndarray, merge_steps: int
) -> Iterator[Event]:
    where = np.flatnonzero(flags)
    if not len(where):
        return
    apart = (np.diff(steps[where]) > merge_steps) & (np.diff(where) > 1)
    for group in np.split(where, np.flatnonzero(apart) + 1):
        finite = group[np.isfinite(values[group])]
        peak = finite[values[finite].argmax()] if len(finite) else group[0]
        yield Event(
            first_step=int(steps[group[0]]),
            last_step=int(steps[group[-1]]),
            flags=len(group),
            peak_step=int(steps[peak]),
            peak=float(values[peak]) if len(finite) else None,
        )
