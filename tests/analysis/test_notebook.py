"""`analyze` from Python: rows for a dataframe, and the same numbers as a look."""

from __future__ import annotations

import pytest
import torch

from gatelm.analysis import analyze, intervene, record
from gatelm.analysis.probe.interventions import constant
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig


def small_model() -> Decoder:
    cfg = ModelConfig.parse(
        {
            "vocab_size": 30,
            "hidden_dim": 16,
            "num_layers": 2,
            "layer": {
                "mixer": {"num_heads": 4, "num_kv_heads": 2},
                "ffn": {"ffn_dim": 24},
                "gates": ["sdpa-head"],
            },
        }
    )
    model = Decoder(cfg)
    init_weights(model, 0)
    return model


def test_rows_for_a_dataframe() -> None:
    report = analyze(small_model(), torch.arange(20).remainder(30))
    assert [(r["layer"], r["head"]) for r in report.heads] == [
        (i, h) for i in (0, 1) for h in range(4)
    ]
    assert [r["layer"] for r in report.layers] == [-1, 0, 1]
    assert [(g["layer"], g["site"]) for g in report.gates] == [(0, "sdpa"), (1, "sdpa")]
    mean = sum(r["first_token_share"] for r in report.heads) / 8
    assert report.metrics["first_token_share"] == pytest.approx(mean, rel=1e-5)
    assert "gate_mean" in str(report)


def test_loss_is_that_of_the_next_token_within_documents() -> None:
    model = small_model()
    ids = torch.randint(0, 30, (2, 12), generator=torch.Generator().manual_seed(0))
    documents = torch.tensor([[0] * 5 + [1] * 7, [0] * 9 + [-1] * 3])
    losses = []
    for row, (start, stop) in ((0, (0, 5)), (0, (5, 12)), (1, (0, 9))):
        part = ids[row : row + 1, start:stop]
        log_p = model(part)[0, :-1].log_softmax(-1)
        losses += (-log_p.gather(1, part[0, 1:, None])).flatten().tolist()
    report = analyze(model, ids, documents=documents, rows_at_once=1)
    assert report.metrics["val_loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_record_and_intervene_from_the_package() -> None:
    model, ids = small_model(), torch.arange(8)[None]
    seen: list[float] = []
    readers = {"sdpa_gated": lambda layer, y: seen.append(y.abs().max().item())}
    with intervene(model, {"sdpa_gate": constant(0.0)}), record(model, readers):
        model(ids)
    assert seen == [0.0, 0.0]


@pytest.mark.parametrize("ids", [[3], torch.zeros(1, 1, dtype=torch.long)])
def test_too_short(ids: object) -> None:
    with pytest.raises(ValueError, match="T >= 2"):
        analyze(small_model(), ids)  # type: ignore[arg-type]
