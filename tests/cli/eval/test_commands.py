import inspect
import json
import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from gatelm.cli.eval.commands import ASKED_BY, USED_BY, evaluate
from gatelm.cli.main import app
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import export_model

TREE = {
    "vocab_size": 258,
    "hidden_dim": 16,
    "num_layers": 2,
    "layer": {"mixer": {"num_heads": 2}, "ffn": {"ffn_dim": 24}, "gates": ["sdpa-head"]},
}


@pytest.fixture
def folder(tmp_path):
    def make(name="model", tokenizer=True, **more):
        model = Decoder(ModelConfig.parse({**TREE, **more}))
        init_weights(model, 0)
        tokenizer = byte_tokenizer() if tokenizer else None
        export_model(tmp_path / name, model, tokenizer, {}, context_tokens=16)
        return str(tmp_path / name)

    return make


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Of the gates of attention, and of the first token. " * 4)
    return str(path)


def run(*arguments):
    return CliRunner().invoke(app, ["eval", *arguments])


def test_the_numbers_do_not_depend_on_the_batch_size(folder, text):
    place = folder()
    found = []
    for size in ("1", "5"):
        result = run(place, "--data", text, "--batch-size", size, "--json")
        assert result.exit_code == 0, result.output
        found.append(json.loads(result.stdout)["perplexity"])
    one, five = found
    assert one["seq_len"] == 16  # the context that the folder states
    assert one["tokens"] == one["text_tokens"] == one["text_bytes"] == 204
    assert one["loss"] == pytest.approx(five["loss"], rel=1e-6)
    assert one["bits_per_byte"] == pytest.approx(one["loss"] / 0.6931472, rel=1e-6)
    assert [b["first"] for b in one["by_position"]] == [1, 2, 4, 8, 16]


def test_the_table_says_what_was_read(folder, text):
    result = run(folder(), "--data", text, "--seq-len", "8", "--max-tokens", "40")
    assert result.exit_code == 0, result.output
    assert "36 of 204 tokens predicted, in 5 rows of up to 8 tokens" in result.stdout
    assert "rows begin with BOS" in result.stdout
    assert "perplexity" in result.stdout


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--data", "nowhere.txt"], "--data: 'nowhere.txt' is neither"),
        (["--stride", "99"], "--stride 99: must be from 1 to --seq-len 16"),
        (["--tasks", "sums", "--include-path", "nowhere"], "--"),
    ],
)
def test_mistakes_are_one_sentence(folder, text, options, sentence):
    given = options if "--data" in options or "--tasks" in options else ["--data", text, *options]
    result = run(folder(), *given)
    assert result.exit_code != 0
    assert sentence in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--window 8", "--window has no use here; it belongs to --by-position"),
        ("--by-position --first-tokens 4", "--first-tokens has no use here; it belongs to --by-"),
        ("--by-position --stride 4", "belongs to the perplexity of a text (without --tasks and"),
        ("--tasks passkey --seq-len 8", "--seq-len has no use here"),
        ("--limit 3", "it belongs to --tasks of lm-evaluation-harness"),
        ("--tasks recall --out x", "--out has no use here; it belongs to retrieval --tasks"),
    ],
)
def test_an_option_that_nothing_would_use_is_refused(folder, options, sentence):
    result = run(folder(), *options.split())
    assert result.exit_code != 0
    assert sentence in str(result.exception)


def test_every_option_says_what_uses_it():
    shared = {"model", "by_position", "tasks", "device", "dtype", "as_json"}
    shared |= {"ignore_unknown_tensors"}
    names = set(inspect.signature(evaluate).parameters) - {"context"}
    assert set(USED_BY) == names - shared
    assert {use for uses in USED_BY.values() for use in uses} == set(ASKED_BY)


def test_a_model_that_cannot_read_text_says_so(folder, text):
    result = run(folder("bare", tokenizer=False), "--data", text)
    assert "has no tokenizer, so it cannot read text" in str(result.exception)
    learned = folder("learned", position_embedding={"max_tokens": 8})
    result = run(learned, "--data", text, "--seq-len", "12")
    assert "position_embedding.max_tokens is 8" in str(result.exception)


def test_a_hugging_face_folder_gives_its_own_loss(tmp_path):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "llama")
    byte_tokenizer().save(tmp_path / "llama" / "tokenizer.json")
    inner = str(tmp_path / "llama" / "tokenizer.json")
    PreTrainedTokenizerFast(tokenizer_file=inner).save_pretrained(tmp_path / "llama")
    documents = ["The first document.", "A second one, which is longer."]
    (tmp_path / "two.jsonl").write_text("\n".join(json.dumps({"text": d}) for d in documents))

    result = run(str(tmp_path / "llama"), "--data", str(tmp_path / "two.jsonl"), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["perplexity"]
    nats = tokens = 0
    for document in documents:
        ids = torch.tensor([list(document.encode())])
        with torch.no_grad():
            mean = float(model(input_ids=ids, labels=ids).loss)
        nats, tokens = nats + mean * (ids.shape[1] - 1), tokens + ids.shape[1] - 1
    assert found["seq_len"] == 64
    assert found["tokens"] == tokens
    assert found["loss"] == pytest.approx(nats / tokens, rel=1e-5)
    assert "no BOS token" in found["first_token"]["reason"]


def test_long_documents_by_position(folder, text):
    result = run(
        *(folder(), "--data", text, "--by-position", "--lengths", "64,128"),
        *("--window", "32", "--stride", "16", "--chunk-tokens", "10", "--json"),
        *("--first-tokens", "0,200"),
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["by_position"]
    assert [entry["length_tokens"] for entry in found["lengths"]] == [64, 128]
    assert found["lengths"][1]["tokens"] == found["sliding"]["tokens"] == 127
    assert found["num_documents"] == 1
    assert [entry["first_tokens"] for entry in found["streaming"]] == [0, 200]
    # nothing leaves a cache as long as the text
    assert found["streaming"][1]["loss"] == pytest.approx(found["lengths"][1]["loss"], rel=1e-4)
    shown = run(folder("other"), "--data", text, "--by-position", "--lengths", "64").stdout
    assert "the first 64 tokens of 1 of 1 documents that long" in shown
    own = json.loads(run(folder("own"), "--data", text, "--by-position", "--json").stdout)
    # the context that the folder states
    assert [entry["length_tokens"] for entry in own["by_position"]["lengths"]] == [16]


def test_retrieval_tasks_score_draw_and_go_on(folder, tmp_path):
    options = ["--tasks", "passkey", "--lengths", "200,256", "--depths", "2", "--samples", "1"]
    out = tmp_path / "answers"
    result = run(folder(), *options, "--out", str(out), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["retrieval"]
    assert found["lengths"] == [200, 256]
    assert set(found["scores"]["passkey"]) == {"200", "256"}
    assert len(found["by_depth"]) == 4
    assert (out / "depth-passkey.svg").read_text().startswith("<svg")
    answers = (out / "answers.jsonl").read_text()
    lines = answers.splitlines()
    assert len(lines) == 5
    # a stopped run: the last answer torn
    (out / "answers.jsonl").write_text("\n".join([*lines[:-1], lines[-1][:20]]))
    again = run(folder("again", True), *options, "--out", str(out))
    assert "holds answers of another model or other settings" in str(again.exception)
    again = run(str(tmp_path / "model"), *options, "--out", str(out))
    assert again.exit_code == 0, again.output
    assert "effective length: none of these" in again.stdout
    assert (out / "answers.jsonl").read_text().splitlines()[-1] == lines[-1]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--by-position", "--lengths", "1q"], "--lengths 1q: '1q' is no length"),
        (["--by-position", "--lengths", "9" * 26], "is no length"),
        (["--by-position", "--lengths", "4k"], "the longest document has"),
        (
            ["--by-position", "--window", "8", "--first-tokens", "two"],
            "--first-tokens two: write numbers",
        ),
        (["--tasks", "passkey", "--lengths", "32"], "passkey: 32 tokens are too few"),
    ],
)
def test_mistakes_about_lengths_are_one_sentence(folder, text, options, sentence):
    data = ["--data", text] if "--by-position" in options else []
    result = run(folder(), *data, *options)
    assert result.exit_code != 0
    assert sentence in str(result.exception)
    assert "\n" not in str(result.exception)


def test_recall_of_a_run_by_length_and_depth(folder, tmp_path):
    options = ("--set", "train.total_steps=2", "--set", "longer=null", "--set", "train.device=cpu")
    trained = CliRunner().invoke(
        app, ["train", "context-recall", "--out", str(tmp_path / "run"), *options]
    )
    assert trained.exit_code == 0, trained.output
    result = run(str(tmp_path / "run"), "--tasks", "recall", "--samples", "1", "--json")
    assert result.exit_code == 0, result.output
    cells = json.loads(result.stdout)["recall"]["by_depth"]
    assert {c["length_tokens"] for c in cells} == {32, 64, 128, 256}
    shown = run(str(tmp_path / "run"), "--tasks", "recall", "--lengths", "32").stdout
    assert "trained on rows of 32" in shown
    refused = run(folder(), "--tasks", "recall")
    assert "is no folder of a run with data.kind associative_recall" in str(refused.exception)


def test_bytes_that_the_tokenizer_drops_do_not_count(tmp_path, text):
    """Spaces, capital letters and punctuation are no tokens of this vocabulary of letters."""
    from tokenizers import Tokenizer, models

    from gatelm.data.tokenizer import load_tokenizer

    letters = {c: n for n, c in enumerate("abcdefghijklmnopqrstuvwxyz")}
    Tokenizer(models.BPE({**letters, "<s>": 26}, [])).save(str(tmp_path / "t.json"))
    model = Decoder(ModelConfig.parse(TREE))
    init_weights(model, 0)
    place = str(tmp_path / "model")
    export_model(tmp_path / "model", model, load_tokenizer(tmp_path / "t.json"), {})
    for arguments in ([], ["--by-position", "--lengths", "16"]):
        refused = run(place, "--data", text, *arguments)
        assert "52 of 204 characters (25.49%)" in str(refused.exception)
        assert "raise --max-lost" in str(refused.exception)
    with pytest.warns(UserWarning, match="drops 52 of 204"):
        done = run(place, "--data", text, "--seq-len", "16", "--max-lost", "0.3", "--json")
    found = json.loads(done.stdout)["perplexity"]
    assert found["coverage"]["dropped_characters"] == 52
    assert found["text_bytes"] == found["text_tokens"] == 152
    assert found["bits_per_byte"] == pytest.approx(found["loss"] / math.log(2))
