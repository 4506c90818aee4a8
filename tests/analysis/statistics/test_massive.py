import pytest
import torch

from gatelm.analysis.probe.layout import Layout
from gatelm.analysis.statistics.massive import MassiveTotals
from gatelm.analysis.statistics.outputs import OutputTotals

DOCUMENTS = torch.tensor([[-1, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, -1]])
TOKENS = torch.arange(12).view(2, 6)


@pytest.fixture
def resid():
    return torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0))


def totals_of(*batches, documents=DOCUMENTS):
    totals = MassiveTotals()
    for resid in batches:
        totals.add(resid, Layout.of(documents, 2, 6), TOKENS)
    return totals


def test_the_largest_entries_have_their_sign_place_and_token(resid):
    resid[0, 0] = 1e6
    resid[1, 3, 7] = -5000.0
    resid[0, 4, 2] = 4000.0
    found = totals_of(resid).summary(None)
    first, second = found["top"][:2]
    assert (first["value"], first["position"], first["channel"], first["id"]) == (-5000.0, 3, 7, 9)
    assert (second["value"], second["position"], second["id"]) == (4000.0, 0, 4)
    assert [abs(e["value"]) for e in found["top"]] == sorted(
        (abs(e["value"]) for e in found["top"]), reverse=True
    )


def test_massive_is_above_100_and_1000_times_the_median(resid):
    resid[1, 3, 7] = -5000.0
    resid[0, 4, 2] = 4000.0
    resid[0, 2, 1] = 90.0
    found = totals_of(resid).summary(lambda token: f"<{token}>")
    assert found["massive_per_sequence"] == 1.0
    assert found["massive_on_first_token"] == 0.5
    assert {entry["token"] for entry in found["massive_tokens"]} == {"<9>", "<4>"}
    # All large: the median is large too, so nothing stands out.
    assert totals_of(resid.sign() * 5000).count_per_sequence == 0.0
    # 1000 times the median, but small.
    small = resid * 1e-3
    assert totals_of(small).count_per_sequence == 0.0


def test_means_are_over_sequences(resid):
    both = totals_of(resid, resid * 3)
    rows = [resid[0, 1:], resid[1, :5]]
    channels = sum(row.abs().amax(dim=0) for row in rows) * (1 + 3) / 4
    found = dict(both.channels(most=9))
    for channel in range(9):
        assert found[channel] == pytest.approx(float(channels[channel]), rel=1e-5)
    top = sum(row.abs().flatten().topk(3).values for row in rows) * (1 + 3) / 4
    assert both.summary(None)["top_3_mean"] == pytest.approx(top.tolist(), rel=1e-5)


def test_outputs_against_formulas(resid):
    resid[1, 3, 7] = -50.0
    totals = OutputTotals()
    totals.add(resid, Layout.of(DOCUMENTS, 2, 6))
    rows = [resid[0, 1:].double(), resid[1, :5].double()]
    kurtosis = [
        float((row - row.mean()).pow(4).mean() / row.var(correction=0) ** 2) for row in rows
    ]
    far = [
        float(((row - row.mean()).abs() > 6 * row.std(correction=0)).double().mean())
        for row in rows
    ]
    found = totals.summary()
    assert found["max_abs"] == pytest.approx(sum(float(r.abs().max()) for r in rows) / 2)
    assert found["kurtosis"] == pytest.approx(sum(kurtosis) / 2, rel=1e-5)
    assert found["outliers"] == pytest.approx(sum(far) / 2)
    assert far[1] > 0
    assert found["largest"] == 50.0
