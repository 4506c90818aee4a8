import importlib.util
import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from gatelm.config import ConfigError
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.eval.harness import run_tasks
from gatelm.hf.modeling.generation import library_tokenizer, open_generator
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import export_model, load_model

needs_harness = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="needs the package lm-eval"
)
QUESTIONS = [
    {"question": f"{a} + {b} =", "choices": [str(a + b), str(a + b + 1), "none"], "answer": 0}
    for a in range(3)
    for b in range(4)
]
TASK = """
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc}}]
"""


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """A multiple-choice task whose data is a local file; nothing may be downloaded."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    folder = tmp_path / "tasks"
    folder.mkdir()
    data = tmp_path / "sums.jsonl"
    data.write_text("\n".join(json.dumps(q) for q in QUESTIONS))
    (folder / "sums.yaml").write_text(TASK.format(data=data))
    return folder


def gatelm_folder(folder):
    tree = {
        "vocab_size": 258,
        "hidden_dim": 16,
        "num_layers": 2,
        "layer": {"mixer": {"num_heads": 2}, "ffn": {"ffn_dim": 24}, "gates": ["sdpa-head"]},
        "init": {"std": 0.2},
    }
    model = Decoder(ModelConfig.parse(tree))
    init_weights(model, 0)
    export_model(folder, model, byte_tokenizer(), {})
    return model.eval(), [256]


def llama_folder(folder):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.2,
        bos_token_id=256,
        eos_token_id=257,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    byte_tokenizer().save(folder / "tokenizer.json")
    PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<|bos|>", eos_token="<|eos|>"
    ).save_pretrained(folder)
    return (lambda tokens: model(tokens).logits), []


@torch.no_grad()
def expected_accuracy(logits, front):
    """The share of questions whose right answer has the largest log-likelihood, by hand."""
    hits = 0
    for q in QUESTIONS:
        scores = []
        for choice in q["choices"]:
            context, answer = list(q["question"].encode()), list(f" {choice}".encode())
            ids = torch.tensor([[*front, *context, *answer]])
            log_probs = logits(ids)[0].log_softmax(-1)[-len(answer) - 1 : -1]
            scores.append(float(log_probs.gather(1, ids[0, -len(answer) :, None]).sum()))
        hits += scores.index(max(scores)) == q["answer"]
    return hits / len(QUESTIONS)


def run_on(folder, *args, **settings):
    model, tokenizer = open_generator(folder, device="cpu")
    unused = model.generation_config.suppress_tokens or ()
    return run_tasks(
        model, library_tokenizer(tokenizer), *args, unused_ids=unused, batch_size=8, **settings
    )


@needs_harness
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_rows_without_a_token_take_no_probability(tasks, tmp_path):
    """Rows added to the vocabulary, however likely, leave the scores of a task as they were."""
    gatelm_folder(tmp_path / "plain")
    decoder, _ = load_model(tmp_path / "plain")
    wide = Decoder(decoder.cfg.replace(vocab_size=264))
    wide.load_state_dict(
        decoder.state_dict()
        | {
            "embedding.weight": torch.cat(
                [decoder.embedding.weight, 9 * decoder.embedding.weight[:6]]
            )
        }
    )
    export_model(tmp_path / "wide", wide, byte_tokenizer(), {})
    plain = run_on(tmp_path / "plain", ["sums"], include_path=tasks)
    assert run_on(tmp_path / "wide", ["sums"], include_path=tasks) == plain


@needs_harness
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [gatelm_folder, llama_folder])
def test_a_multiple_choice_task(tasks, tmp_path, make):
    logits, front = make(tmp_path / "model")
    found = run_on(tmp_path / "model", ["sums"], include_path=tasks)
    assert found["sums"]["acc"] == pytest.approx(expected_accuracy(logits, front))


@needs_harness
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_unknown_task_is_told_the_nearest(tasks, tmp_path):
    gatelm_folder(tmp_path / "model")
    with pytest.raises(ConfigError, match="--tasks summs: not known; did you mean 'sums'"):
        run_on(tmp_path / "model", ["summs"], include_path=tasks)


def test_mistakes_are_one_sentence(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found("json"))
    with pytest.raises(ConfigError, match=r"--include-path .*nowhere: there is no such folder"):
        run_tasks(None, None, ["sums"], include_path=tmp_path / "nowhere")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"--tasks needs the package lm-eval \(pip install"):
        run_tasks(None, None, ["sums"])
