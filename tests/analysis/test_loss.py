import math

import pytest
import torch
from torch.nn import functional as F

from gatelm.analysis import loss
from gatelm.analysis.probe.layout import Placed


def test_targets_that_are_ignored_take_no_part(build, batch, monkeypatch):
    monkeypatch.setattr(loss, "LOGITS_PER_BLOCK", 7 * 32)
    model, rows = build(), batch()
    rows.targets[0, 5:] = -100
    mark = torch.zeros(3, 24, dtype=torch.bool)
    mark[0, 3:] = True
    placed = Placed(rows.tokens, rows.targets, None, {"m": mark, "none": ~mark & mark})
    totals = loss.LossTotals()
    with torch.no_grad():
        totals.add(model, model.hidden(rows.tokens), placed)
        logits = model(rows.tokens)
    expected = F.cross_entropy(logits.flatten(0, 1), rows.targets.flatten())
    assert totals.loss() == pytest.approx(float(expected), rel=1e-6)
    marked = F.cross_entropy(logits[0, 3:5], rows.targets[0, 3:5])
    assert totals.loss("m") == pytest.approx(float(marked), rel=1e-6)
    assert math.isnan(totals.loss("none"))
    assert totals.marks() == ["m", "none"]
