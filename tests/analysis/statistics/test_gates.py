import pytest
import torch

from gatelm.analysis.probe.layout import Layout
from gatelm.analysis.statistics.gates import GateTotals


def layout_of(documents):
    ids = torch.tensor(documents)
    return Layout.of(ids, *ids.shape)


DOCUMENTS = [[-1, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0, -1, -1]]


@pytest.fixture
def scores():
    return torch.rand(2, 8, 3, 5, generator=torch.Generator().manual_seed(0)) ** 3


def test_summary_against_torch(scores):
    layout = layout_of(DOCUMENTS)
    mark = torch.zeros(2, 8, dtype=torch.bool)
    mark[0, :3] = True
    totals = GateTotals()
    totals.add(scores, layout, {"m": mark})
    found = totals.summary()
    kept = scores[layout.valid].double()
    assert found["mean"] == pytest.approx(float(kept.mean()))
    assert found["std"] == pytest.approx(float(kept.std(correction=0)))
    assert found["median"] == pytest.approx(float(kept.quantile(0.5)), abs=2e-3)
    assert found["below_0.1"] == pytest.approx(float((kept < 0.1).double().mean()))
    assert found["below_0.01"] == pytest.approx(float((kept < 0.01).double().mean()))
    assert found["above_0.9"] == pytest.approx(float((kept > 0.9).double().mean()))
    assert found["token_std"] == pytest.approx(float(kept.std(dim=0, correction=0).mean()))
    assert found["mean_by_head"] == pytest.approx(kept.mean(dim=(0, 2)).tolist())
    assert found["by_mark"] == {"m": pytest.approx(float(scores[0, 1:3].mean()))}
    first = torch.stack([scores[0, 1], scores[0, 5], scores[1, 0]])
    assert found["first_token_mean"] == pytest.approx(float(first.mean()))
    assert sum(found["histogram"]["counts"]) == kept.numel()


def test_batches_add_up(scores):
    whole, parts = GateTotals(), GateTotals()
    whole.add(scores, layout_of(DOCUMENTS), {})
    for b in (0, 1):
        parts.add(scores[b : b + 1], layout_of(DOCUMENTS[b : b + 1]), {})
    found, expected = parts.summary(), whole.summary()
    for name in ("mean", "median", "std", "token_std", "first_token_mean", "below_0.1"):
        assert found[name] == pytest.approx(expected[name])
    assert found["histogram"] == expected["histogram"]


def test_a_static_gate_does_not_vary_between_tokens():
    totals = GateTotals()
    totals.add(
        torch.tensor([0.1, 0.7]).view(1, 1, 2, 1).expand(2, 8, 2, 1), Layout.of(None, 2, 8), {}
    )
    found = totals.summary()
    assert found["token_std"] == pytest.approx(0.0, abs=1e-7)
    assert found["std"] == pytest.approx(0.3)
    assert found["mean_by_head"] == pytest.approx([0.1, 0.7])
