import math

import pytest
import torch

from gatelm.analysis.statistics.histogram import StreamingHistogram


def test_unit_range_is_kept_for_scores_in_it():
    histogram = StreamingHistogram()
    histogram.add(torch.tensor([0.0, 0.25, 1.0]))
    assert (histogram.low, histogram.high) == (0.0, 1.0)
    edges, counts = histogram.binned(4)
    assert edges == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert counts == [1, 1, 0, 1]


def test_the_range_grows_and_counts_stay():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5000, generator=generator) * 3
    histogram = StreamingHistogram()
    histogram.add(values[:100] * 0.1)
    histogram.add(values)
    everything = torch.cat((values[:100] * 0.1, values))
    assert int(histogram.counts.sum()) == 5100
    assert histogram.low <= float(everything.min())
    assert histogram.high >= float(everything.max())
    width = (histogram.high - histogram.low) / len(histogram.counts)
    for q in (0.1, 0.5, 0.9):
        expected = float(everything.quantile(q))
        assert histogram.quantile(q) == pytest.approx(expected, abs=2 * width)


def test_what_is_not_finite_is_counted_apart():
    histogram = StreamingHistogram()
    histogram.add(torch.tensor([float("nan"), float("inf"), 0.5]))
    assert histogram.num_nonfinite == 2
    assert int(histogram.counts.sum()) == 1
    assert math.isnan(StreamingHistogram().quantile(0.5))
