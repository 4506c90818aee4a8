import math

import pytest
import torch

from gatelm.analysis.probe.layout import Layout
from gatelm.analysis.statistics.activations import NormRatio, ResidualTotals

DOCUMENTS = torch.tensor([[-1, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, -1]])


@pytest.fixture
def resid():
    return torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0))


def test_extremes_are_per_sequence_without_padding(resid):
    resid[0, 0] = 1000.0
    resid[1, 3, 7] = -50.0
    totals = ResidualTotals()
    totals.add(resid, Layout.of(DOCUMENTS, 2, 6))
    rows = [resid[0, 1:].double(), resid[1, :5].double()]
    expected = {
        "max_abs": [float(row.abs().max()) for row in rows],
        "median_abs": [float(row.abs().median()) for row in rows],
        "ratio": [float(row.abs().max() / row.abs().median()) for row in rows],
        "kurtosis": [
            float((row - row.mean()).pow(4).mean() / row.var(correction=0) ** 2) for row in rows
        ],
    }
    for name, values in expected.items():
        assert totals.mean(name) == pytest.approx(sum(values) / 2, rel=1e-5), name
    assert totals.max_abs_overall == 50.0
    assert totals.largest_at == (3, 7)


def test_norm_ratio_takes_means_first(resid):
    ratio = NormRatio()
    ratio.add(resid, Layout.of(DOCUMENTS, 2, 6))
    norms = resid.norm(dim=-1)
    first = torch.stack([norms[0, 1], norms[0, 4], norms[1, 0]]).mean()
    rest = torch.cat([norms[0, 2:4], norms[0, 5:], norms[1, 1:5]]).mean()
    assert float(ratio.ratio()) == pytest.approx(float(first / rest))


def test_norm_ratio_by_head():
    vectors = torch.ones(1, 4, 2, 3)
    vectors[:, 0, 1] = 5.0
    ratio = NormRatio()
    ratio.add(vectors, Layout.of(None, 1, 4))
    torch.testing.assert_close(ratio.ratio(), torch.tensor([1.0, 5.0]).double())


def test_nothing_seen_is_no_number(resid):
    assert math.isnan(ResidualTotals().mean("max_abs"))
    ratio = NormRatio()
    ratio.add(resid[:, :1], Layout.of(None, 2, 1))
    assert math.isnan(float(ratio.ratio()))
