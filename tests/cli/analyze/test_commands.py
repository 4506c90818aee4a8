import csv
import json
import math
import re
import sys

import pytest
import torch
import typer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from gatelm.cli import main as main_module
from gatelm.cli.analyze.commands import analyze
from gatelm.config import ConfigError
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import export_model

TEXT = "It was the best of times, it was the worst of times.\n" * 40


def save(folder, *gates, tokenizer=True, vocab_size=258):
    tree = {
        "vocab_size": vocab_size,
        "hidden_dim": 32,
        "num_layers": 2,
        "layer": {
            "mixer": {"num_heads": 4, "num_kv_heads": 2},
            "ffn": {"ffn_dim": 48},
            "gates": list(gates),
        },
    }
    model = Decoder(ModelConfig.parse(tree, "model"))
    init_weights(model, 0)
    export_model(folder, model, byte_tokenizer() if tokenizer else None, {})
    return folder


def save_llama(folder):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    inner = PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer()._inner, bos_token="<|bos|>")
    inner.save_pretrained(folder)
    return folder


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def drawn():
    """Asked for by the test that reads the figures' files: drawing them takes seconds."""


@pytest.fixture
def run(tmp_path, text, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    if "drawn" not in request.fixturenames:
        monkeypatch.setattr("gatelm.report.charts.figures.write", lambda figures, folder: [])

    def run(*arguments, use_text=True):
        app = typer.Typer()
        app.command()(analyze)
        options = ["--device", "cpu", "--seq-len", "64", "--samples", "4"]
        options += ["--text", text] if use_text else []
        return CliRunner().invoke(app, [str(a) for a in [*options, *arguments]])

    return run


def error(result):
    """The one sentence of a user's mistake."""
    assert isinstance(result.exception, ConfigError), (result.exception, result.output)
    sentence = str(result.exception)
    assert "\n" not in sentence
    return sentence


@pytest.mark.slow
def test_two_models_are_compared_and_every_file_is_written(drawn, run, tmp_path):
    first, second = save(tmp_path / "plain"), save(tmp_path / "gated", "sdpa-head")
    done = run(first, second, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert re.search(r"first_token_share +0\.\d+ +0\.\d+", done.stdout)
    assert "report: " in done.stdout
    out = tmp_path / "out"
    results = json.loads((out / "analysis.json").read_text())
    assert [model["name"] for model in results["models"]] == ["plain", "gated"]
    for model in results["models"]:
        assert model["first_token"]["id"] == 256
        assert "puts first by itself" in model["first_token"]["reason"]
        assert model["analysis"]["num_sequences"] == 4
        assert model["analysis"]["attention_maps"]["tokens"][:3] == ["<|bos|>", "I", "t"]
    with (out / "metrics.csv").open() as file:
        rows = {row[0]: row[1:] for row in csv.reader(file)}
    assert rows["metric"] == ["plain", "gated"]
    assert rows["gate_mean"][0] == ""
    assert float(rows["gate_mean"][1]) == results["models"][1]["metrics"]["gate_mean"]
    with (out / "heads.csv").open() as file:
        heads = list(csv.DictReader(file))
    assert len(heads) == 2 * 2 * 4
    share = results["models"][1]["analysis"]["first_token_share"][1][3]
    assert float(heads[-1]["first_token_share"]) == share
    assert heads[0]["gated_share"] == ""
    assert heads[-1]["gated_share"]
    report = (out / "report.html").read_text()
    assert "<h1>Inside 2 models</h1>" in report
    assert any((out / "figures").glob("first-token-share*.svg"))


def test_json_is_all_that_stands_on_stdout(run, tmp_path):
    done = run(save(tmp_path / "plain"), "--json", "--layers", "1")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert math.isfinite(facts["models"]["plain"]["val_loss"])
    assert (tmp_path / facts["report"]) == tmp_path / "analysis" / "plain" / "report.html"
    assert "rows begin with '<|bos|>' (id 256)" in done.stderr
    assert "would take" in done.stderr
    tree = json.loads((tmp_path / "analysis/plain/analysis.json").read_text())
    assert tree["models"][0]["analysis"]["attention_layers"] == [1]


def test_a_model_of_transformers_beside_one_of_ours(run, tmp_path):
    ours = save(tmp_path / "ours", "sdpa-head")
    theirs = save_llama(tmp_path / "theirs")
    done = run(theirs, ours, "--bos", "always", "--intervene", "--streaming", "--json")
    assert done.exit_code == 0, done.output
    tree = json.loads((tmp_path / "analysis/theirs/analysis.json").read_text())
    llama, gated = tree["models"]
    assert (llama["family"], gated["family"]) == ("llama", "gatelm")
    assert llama["first_token"]["id"] == gated["first_token"]["id"] == 256
    assert llama["analysis"]["num_layers"] == 3
    assert {effect["name"] for effect in llama["interventions"]} >= {"none", "values_zero_0"}
    assert {effect["name"] for effect in gated["interventions"]} >= {"gate_open", "gate_shut"}
    for model in tree["models"]:
        assert [row["first_tokens"] for row in model["streaming"]["rows"]] == [0, 1, 2, 4]
        assert model["streaming"]["window_tokens"] == 32
    report = (tmp_path / "analysis/theirs/report.html").read_text()
    assert "Interventions" in report
    assert "Streaming" in report


def test_bos_is_left_out_where_the_tokenizer_leaves_it_out(run, tmp_path):
    theirs = save_llama(tmp_path / "theirs")
    for bos, first in (("auto", ord("I")), ("always", 256), ("never", ord("I"))):
        done = run(theirs, "--bos", bos, "--out", tmp_path / bos)
        assert done.exit_code == 0, done.output
        tree = json.loads((tmp_path / bos / "analysis.json").read_text())
        assert tree["models"][0]["first_token"]["id"] == first


def test_models_of_the_same_name_are_told_apart(run, tmp_path):
    models = [save(tmp_path / part / "same") for part in ("a", "b")]
    done = run(*models, models[0], "--json")
    names = list(json.loads(done.stdout)["models"])
    assert names == ["same (a) #1", "same (b)", "same (a) #3"]


def test_a_run_without_a_tokenizer_uses_its_own_data(run, tmp_path):
    folder = tmp_path / "sdpa-head" / "seed-3-0123abcd"
    save(folder / "model", "sdpa-head", tokenizer=False, vocab_size=17)
    recipe = {
        "name": "tiny",
        "model": {
            "hidden_dim": 32,
            "num_layers": 2,
            "layer": {"mixer": {"num_heads": 4}, "ffn": {"ffn_dim": 48}},
        },
        "data": {"kind": "bigram_backcopy", "num_tokens": 16, "seq_len": 32},
        "train": {"total_steps": 1, "batch_size": 2},
    }
    (folder / "config.yaml").write_text(json.dumps(recipe))
    done = run(folder, "--json", "--streaming", "--intervene", use_text=False)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)["models"]["sdpa-head, seed 3"]
    assert "first_token_share_trigger" in facts
    tree = json.loads((tmp_path / "analysis/sdpa-head-seed-3/analysis.json").read_text())
    assert "without a tokenizer" in tree["models"][0]["streaming"]["error"]
    assert tree["models"][0]["interventions"]
    assert "cannot read --text; leave it out" in error(run(folder))
    lonely = save(tmp_path / "lonely", tokenizer=False)
    assert "name a run folder" in error(run(lonely, use_text=False))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--layers", "7"], r"--layers 7: there is no layer 7; plain has 2, from 0"),
        (["--layers", "5:"], r"--layers 5:: no layer is left; plain has 2"),
        (["--layers", "one"], r"--layers one: expected \"0,5,-1\" or a slice"),
        (["--seq-len", "9999"], r"--seq-len 9999: the longest document has 2120 tokens"),
        (["--text", "nowhere.txt"], r"--text: 'nowhere.txt' is neither an existing file"),
        (["--device", "cuda:7"], r"--device: cuda:7 cannot be used"),
        (["--dtype", "float7"], r"unknown dtype 'float7'"),
    ],
)
def test_a_mistake_is_one_sentence(run, tmp_path, options, sentence):
    assert re.search(sentence, error(run(save(tmp_path / "plain"), *options)))
    assert not (tmp_path / "analysis").exists()


def test_a_tokenizer_of_another_model_is_refused(run, tmp_path):
    small = save(tmp_path / "small", vocab_size=200)
    assert "do not belong together" in error(run(small))


def test_memory_that_does_not_suffice_is_told_before_the_work(run, tmp_path, monkeypatch):
    from gatelm.nn import device

    monkeypatch.setattr(device, "available_bytes", lambda device: 1 << 20)
    assert "1 MiB are free; use a smaller --seq-len" in error(run(save(tmp_path / "plain")))


def test_a_model_that_is_not_there_ends_with_status_2(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gatelm", "analyze", "no/such/model"])
    with pytest.raises(SystemExit) as stop:
        main_module.main()
    assert stop.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: no/such/model: ")
