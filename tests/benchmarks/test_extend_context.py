import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from gatelm.data.tokenizer import byte_tokenizer
from gatelm.longcontext.scaling import scaled
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import export_model, load_model

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "extend_context.py"
ORIGINAL, LENGTH, BLOCK = 2048, 4096, 256


@pytest.fixture
def benchmark(monkeypatch):
    spec = importlib.util.spec_from_file_location("extend_context", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "extend_context", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path):
    layer = {"mixer": {"num_heads": 1, "head_dim": 8}, "ffn": {"ffn_dim": 8}}
    tree = {"vocab_size": 258, "hidden_dim": 8, "num_layers": 1, "layer": layer}
    model = Decoder(ModelConfig.parse(tree))
    init_weights(model, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(20.0 if parameter.dim() > 1 else 1.0)
    export_model(tmp_path / "ours", model, byte_tokenizer(), {}, context_tokens=ORIGINAL)
    return tmp_path / "ours"


def test_losses_are_those_of_the_scaled_model_and_runs_are_kept(
    benchmark, folder, tmp_path, monkeypatch, capsys
):
    words = [str(folder), str(tmp_path / "out"), "--lengths", "4k", "--methods", "none,yarn,window"]
    monkeypatch.setattr("sys.argv", ["extend_context", *words])
    benchmark.main()
    runs = sorted((tmp_path / "out" / "runs").iterdir())
    assert [run.name.split("-")[0] for run in runs] == ["none", "window", "yarn"]
    found = json.loads(runs[2].read_text())
    model = load_model(folder)[0]
    longer = Decoder(scaled(model.cfg, "yarn", 2.0, ORIGINAL)).eval()
    longer.load_state_dict(model.state_dict())
    ids = torch.tensor(benchmark.documents(byte_tokenizer(), LENGTH, 1)[0][1])
    with torch.no_grad():
        losses = torch.nn.functional.cross_entropy(
            longer(ids[None])[0, :-1], ids[1:], reduction="none"
        )
    # block i holds the targets at its positions; the first position is none
    expected = [losses[max(0, BLOCK * i - 1) : BLOCK * (i + 1) - 1].mean() for i in range(16)]
    torch.testing.assert_close(
        torch.tensor(found["losses"]), torch.stack(expected), atol=1e-3, rtol=1e-3
    )
    windowed = torch.tensor(json.loads(runs[1].read_text())["losses"])
    with torch.no_grad():
        # the second window starts at half of the length and adds its second half
        logits = model(ids[None, ORIGINAL // 2 : ORIGINAL * 3 // 2])[0, ORIGINAL // 2 - 1 : -1]
    added = ids[ORIGINAL : ORIGINAL * 3 // 2]
    expected = torch.nn.functional.cross_entropy(logits, added, reduction="none")
    torch.testing.assert_close(
        windowed[ORIGINAL // BLOCK : ORIGINAL * 3 // 2 // BLOCK],
        expected.view(-1, BLOCK).mean(1),
        atol=1e-3,
        rtol=1e-3,
    )
    text = (tmp_path / "out" / "README.md").read_text()
    assert (
        "| rank | method | 0k-256 | 256-512 | 512-1k | 1k-2k | 2k-4k | beyond | to the best |"
        in text
    )
    assert "±" in text
    assert (tmp_path / "out" / "by-position-4k.svg").is_file()
    capsys.readouterr()
    benchmark.main()
    assert "tokens" not in capsys.readouterr().out


def test_a_half_that_is_not_moved_has_the_loss_of_the_plain_forward(
    benchmark, folder, tmp_path, monkeypatch
):
    words = [str(folder), str(tmp_path / "out"), "--lengths", "4k", "--methods", "linear"]
    monkeypatch.setattr("sys.argv", ["extend_context", *words, "--skipped"])
    benchmark.main()
    names = sorted(file.name for file in (tmp_path / "out" / "skipped").iterdir())
    assert [name.rsplit("-", 3)[0] for name in names] == [
        "alone-1024",
        "linear-4096",
        "none-2048",
    ]
    model, tokens = load_model(folder)[0], benchmark.SKIPPED_TOKENS
    ids = torch.tensor(benchmark.documents(byte_tokenizer(), tokens, 1)[0][1])
    with torch.no_grad():
        logits = model(ids[None])[0, tokens // 2 - 1 : -1]
    losses = torch.nn.functional.cross_entropy(logits, ids[tokens // 2 :])
    found = json.loads((tmp_path / "out" / "skipped" / names[2]).read_text())["losses"]
    assert sum(found) / len(found) == pytest.approx(float(losses), abs=1e-4)
    assert "| linear |" in (tmp_path / "out" / "README.md").read_text()
