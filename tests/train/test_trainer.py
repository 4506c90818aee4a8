import hashlib
import json
import math
import shutil

import pytest
import torch

from gatelm.analysis.metrics.registry import METRICS, split_mark
from gatelm.config import ConfigError
from gatelm.config.load import read_yaml
from gatelm.data.source import build_source
from gatelm.train import trainer as run_module
from gatelm.train.config import RunConfig
from gatelm.train.evaluate import evaluate
from gatelm.train.parallel import World
from gatelm.train.saving.checkpoint import CheckpointError
from gatelm.train.saving.export import load_model
from gatelm.train.trainer import train
from gatelm.train.watching.metrics import read_metrics


@pytest.fixture(autouse=True)
def _fake_analysis(request):
    if "real_analysis" not in request.fixturenames:
        request.getfixturevalue("fake_analysis")


@pytest.fixture
def real_analysis():
    """Ask for it to run the analysis itself."""


def records(folder, kind=None):
    return list(read_metrics(folder / "metrics.jsonl", kind))


def losses(folder):
    return [(r["step"], r["loss"], r["grad_norm"]) for r in records(folder, "train")]


def contents(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_run_leaves_everything_the_others_read(tiny, tmp_path):
    cfg = tiny({"train": {"eval_every_steps": 3, "health_every_steps": 2, "log_every_steps": 2}})
    seen = []
    folder = tmp_path / "run"
    result = train(cfg, folder, report=seen.append)
    assert result.status == "finished"
    assert result.steps == 6
    assert result.tokens == 6 * 4 * 16
    assert [r["step"] for r in records(folder, "train")] == [2, 4, 6]
    assert [r["step"] for r in records(folder, "eval")] == [0, 3, 6]
    assert [r["step"] for r in records(folder, "health")] == [0, 2, 4]
    saved = json.loads((folder / "result.json").read_text())
    assert saved["status"] == "finished"
    assert saved["config_hash"] == cfg.content_hash()
    assert saved["metrics"]["first_token_share"] == 0.25
    assert saved["metrics"]["val_loss"] == records(folder, "eval")[-1]["val_loss"]
    assert saved["parameters"] > saved["gate_parameters"] > 0
    assert json.loads((folder / "run.json").read_text())["config_hash"] == cfg.content_hash()
    assert json.loads((folder / "analysis.json").read_text()) == {"seq_len": 16}
    assert RunConfig.parse(read_yaml(folder / "config.yaml")) == cfg
    assert not (folder / "checkpoints").exists()
    assert seen[-1].phase == "done"
    assert seen[-1].step == seen[-1].total_steps == 6
    assert {p.phase for p in seen} == {"train", "eval", "health", "analysis", "done"}


def test_training_lowers_the_loss(tiny, tmp_path):
    cfg = tiny({"train": {"total_steps": 40, "batch_size": 8}, "optim": {"lr": 1e-2}})
    train(cfg, tmp_path)
    values = [loss for _, loss, _ in losses(tmp_path)]
    assert sum(values[-5:]) / 5 < sum(values[:5]) / 5 - 0.2


def test_measuring_does_not_change_training(tiny, tmp_path):
    dropout = {"model": {"layer": {"residual_dropout": 0.2}}}
    often = {"eval_every_steps": 1, "health_every_steps": 1, "checkpoint_every_steps": 1}
    train(tiny(dropout), tmp_path / "a")
    train(tiny({**dropout, "train": often}), tmp_path / "b")
    assert losses(tmp_path / "a") == losses(tmp_path / "b")


def test_a_finished_run_is_returned_untouched(tiny, tmp_path):
    first = train(tiny(), tmp_path)
    before = contents(tmp_path)
    assert train(tiny(), tmp_path) == first
    assert train(tiny({"train": {"log_every_steps": 5}}), tmp_path) == first
    assert contents(tmp_path) == before


@pytest.mark.parametrize("resume", ["auto", "never", "must"])
def test_another_config_is_refused_and_nothing_is_touched(tiny, tmp_path, resume):
    train(tiny(), tmp_path)
    before = contents(tmp_path)
    with pytest.raises(ConfigError) as error:
        train(tiny({"optim": {"lr": 1e-2}}), tmp_path, resume=resume)
    if resume != "never":
        assert "optim.lr: 0.003 there, 0.01 here" in str(error.value)
    assert "\n" not in str(error.value)
    assert contents(tmp_path) == before


def test_never_refuses_a_folder_with_a_run_and_must_one_without(tiny, tmp_path):
    with pytest.raises(ConfigError, match="no run to resume"):
        train(tiny(), tmp_path / "a", resume="must")
    assert not (tmp_path / "a").exists()
    train(tiny(), tmp_path / "b")
    with pytest.raises(ConfigError, match="already holds a run"):
        train(tiny(), tmp_path / "b", resume="never")


def test_a_folder_of_something_else_is_refused(tiny, tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match="not a run that gatelm wrote"):
        train(tiny(), tmp_path)


def test_mistakes_are_found_before_anything_is_written(tiny, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"model.vocab_size: 5, but the data"):
        train(tiny({"model": {"vocab_size": 5}}), folder)
    with pytest.raises(ConfigError, match="matches no parameter"):
        train(tiny({"optim": {"groups": {"x": {"pattern": "nothing"}}}}), folder)
    with pytest.raises(ConfigError, match=r"train.device"):
        train(tiny({"train": {"device": "abacus"}}), folder)
    assert not folder.exists()


def test_a_stop_saves_and_the_next_call_goes_on(tiny, tmp_path):
    train(tiny(), tmp_path / "whole")
    calls = iter([False, False, True])
    stopped = train(tiny(), tmp_path / "run", should_stop=lambda: next(calls))
    assert stopped.status == "stopped"
    assert stopped.steps == 2
    assert not (tmp_path / "run" / "result.json").exists()
    assert train(tiny(), tmp_path / "run").status == "finished"
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert [r["what"] for r in records(tmp_path / "run", "event")] == ["resumed"]


def test_a_run_killed_before_its_first_checkpoint_starts_over(tiny, tmp_path, monkeypatch):
    def crash(*_, **__):
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(run_module.checkpoint, "save", crash)
        with pytest.raises(RuntimeError, match="killed"):
            train(tiny({"train": {"checkpoint_every_steps": 3}}), tmp_path)
    assert losses(tmp_path)
    train(tiny(), tmp_path)
    assert [step for step, *_ in losses(tmp_path)] == [1, 2, 3, 4, 5, 6]
    (tmp_path / "result.json").unlink()
    with pytest.raises(ConfigError, match="no checkpoint"):
        train(tiny(), tmp_path, resume="must")


def test_a_damaged_checkpoint_falls_back_with_an_event(tiny, tmp_path, caplog):
    every = {"checkpoint_every_steps": 2}
    train(tiny(), tmp_path / "whole")
    train(tiny({"train": {**every, "stop_at_step": 5}}), tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / "step-00000005"
    (newest / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match="damaged"):
        train(tiny({"train": every}), tmp_path / "run", resume="must")
    result = train(tiny({"train": every}), tmp_path / "run")
    assert result.status == "finished"
    assert "step-00000005" in caplog.text
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    assert records(tmp_path / "run", "event")[0]["what"] == "damaged checkpoint"


def test_a_longer_run_goes_on_from_the_end_only_when_asked(tiny, tmp_path):
    every = {"checkpoint_every_steps": 6}
    train(tiny({"train": every}), tmp_path)
    longer = tiny({"train": {**every, "total_steps": 9}})
    with pytest.raises(ConfigError, match="--resume must"):
        train(longer, tmp_path)
    result = train(longer, tmp_path, resume="must")
    assert result.steps == 9
    assert result.config_hash == longer.content_hash()
    assert [step for step, *_ in losses(tmp_path)] == list(range(1, 10))
    with pytest.raises(ConfigError, match="checkpoint of step 9"):
        train(tiny({"train": {**every, "total_steps": 7}}), tmp_path, resume="must")


def test_other_data_refuses_to_resume(tiny, tmp_path):
    train(tiny({"train": {"stop_at_step": 2}}), tmp_path)
    state_file = tmp_path / "checkpoints" / "step-00000002" / "state.json"
    manifest_file = state_file.with_name("manifest.json")
    text = state_file.read_text().replace('"data_fingerprint": "', '"data_fingerprint": "x')
    manifest = json.loads(manifest_file.read_text())
    state_file.write_text(text)
    manifest["files"]["state.json"] = {
        "bytes": len(text.encode()),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
    manifest_file.write_text(json.dumps(manifest))
    with pytest.raises(ConfigError, match="fingerprint"):
        train(tiny(), tmp_path)


def test_divergence_is_an_outcome(tiny, tmp_path, monkeypatch):
    real = run_module.train_step

    def poisoned(state, batch, **rest):
        if state.step == 3:
            with torch.no_grad():
                state.model.final_norm.weight.fill_(math.nan)
        return real(state, batch, **rest)

    monkeypatch.setattr(run_module, "train_step", poisoned)
    result = train(tiny(), tmp_path)
    assert result.status == "diverged"
    assert result.steps == 3
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "diverged"
    event = records(tmp_path, "event")[-1]
    assert event["what"] == "diverged"
    assert "loss nan" in event["detail"]
    assert not (tmp_path / "model").exists()
    assert train(tiny(), tmp_path) == result


def test_a_folder_in_use_is_refused(tiny, tmp_path):
    from gatelm.io.locks import exclusive

    with exclusive(tmp_path, "training"), pytest.raises(ConfigError, match="another process"):
        train(tiny(), tmp_path)


@pytest.mark.usefixtures("real_analysis")
def test_the_final_analysis_agrees_with_validation(tiny, tmp_path):
    cfg = tiny({"train": {"health_every_steps": 3, "eval_every_steps": 6}})
    result = train(cfg, tmp_path)
    model, _ = load_model(tmp_path)
    source = build_source(cfg.data, cfg.seed)
    expected = evaluate(model, source, cfg.train, World(torch.device("cpu")))
    assert result.metrics["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-6)
    assert records(tmp_path, "eval")[-1]["val_loss"] == result.metrics["val_loss"]
    assert {split_mark(name)[0] for name in result.metrics} <= set(METRICS)
    assert {"first_token_share", "gate_mean", "max_logit"} <= set(records(tmp_path, "health")[0])
    assert json.loads((tmp_path / "analysis.json").read_text())["num_layers"] == 2


@pytest.mark.usefixtures("real_analysis")
def test_the_causal_check_is_measured_where_it_is_asked_for(tiny, tmp_path):
    asked = {"train": {"final_causal": "gates"}}
    off, on = train(tiny(), tmp_path / "off"), train(tiny(asked), tmp_path / "on")
    bare = train(tiny({**asked, "model": {"layer": {"gates": []}}}), tmp_path / "bare")
    new = set(on.metrics) - set(off.metrics)
    assert {"loss_gates_shut_change", "first_token_share_gates_open_change_non_trigger"} <= new
    assert all(on.metrics[name] == value for name, value in off.metrics.items())
    assert {split_mark(name)[0] for name in on.metrics} <= set(METRICS)
    assert not {name for name in bare.metrics if name.endswith("_change")}
    assert tiny().content_hash() == tiny({"train": {"final_causal": "off"}}).content_hash()
    assert tiny().content_hash() != tiny(asked).content_hash()


def test_a_deleted_model_is_made_again_from_the_checkpoint(tiny, tmp_path, real_analysis):
    cfg = tiny({"train": {"checkpoint_every_steps": 4}})
    first = train(cfg, tmp_path / "run")
    before = contents(tmp_path / "run" / "model")
    shutil.rmtree(tmp_path / "run" / "model")
    again = train(cfg, tmp_path / "run")
    assert contents(tmp_path / "run" / "model") == before
    assert again.metrics == first.metrics
    shutil.rmtree(tmp_path / "run" / "model")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(ConfigError, match="model/ is gone and no checkpoint is left to make it"):
        train(cfg, tmp_path / "run")
    assert (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.json", "[]"),
        ("run.json", "{}"),
        ("run.json", '{"config_hash": 3}'),
        ("result.json", "[" * 100_000),
        ("result.json", '{"status": "finished"}'),
        ("result.json", '{"status": 7, "config_hash": [], "steps": {}}'),
        ("config.yaml", "{a: 1, a: 2}"),
    ],
)
def test_damaged_records_are_one_sentence(tiny, tmp_path, name, text):
    cfg = tiny()
    train(cfg, tmp_path)
    (tmp_path / name).write_text(text)
    if name == "config.yaml":  # nothing is read from it while the hashes agree
        assert train(cfg, tmp_path).status == "finished"
        return
    with pytest.raises(ConfigError) as error:
        train(cfg, tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_record_of_a_later_version_is_read(tiny, tmp_path):
    cfg = tiny()
    done = train(cfg, tmp_path)
    tree = json.loads((tmp_path / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps({**tree, "joules": 3.0}))
    assert train(cfg, tmp_path) == done


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("state.json", {"step": "x"}),
        ("state.json", {"rng": 3}),
        ("state.json", {"throughput": []}),
        ("manifest.json", {"files": []}),
        ("manifest.json", {"files": {"state.json": 3}}),
        ("manifest.json", {"format": {}}),
    ],
)
def test_damaged_checkpoints_are_one_sentence(tiny, tmp_path, name, change):
    cfg = tiny({"train": {"stop_at_step": 2}})
    train(cfg, tmp_path)
    (path,) = (tmp_path / "checkpoints").iterdir()
    tree = json.loads((path / name).read_text())
    (path / name).write_text(json.dumps({**tree, **change}))
    if name == "state.json":
        manifest = json.loads((path / "manifest.json").read_text())
        content = (path / name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        manifest["files"][name] = {"bytes": len(content), "sha256": digest}
        (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises((ConfigError, CheckpointError)) as error:
        train(cfg, tmp_path)
    assert str(path) in str(error.value)


def test_a_model_beyond_memory_is_refused_before_it_is_made(tiny, tmp_path):
    cfg = tiny({"model": {"hidden_dim": 200_000, "layer": {"ffn": {"ffn_dim": 800_000}}}})
    with pytest.raises(ConfigError, match=r"parameters need [\d,.]+ GB for weights, gradients"):
        train(cfg, tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2**64},
        {"seed": 10**5000},
        {"train": {"threads": 1_000_000}},
        {"train": {"total_steps": 2**63}},
        {"data": {"seq_len": 10**30}},
        {"train": {"device": "meta"}},
        {"name": "../../x"},
        {"name": "/abs"},
        {"name": "a/../../b"},
        {"name": ""},
    ],
)
def test_values_that_nothing_can_be_are_refused(tiny, tmp_path, change):
    with pytest.raises(ConfigError) as error:
        train(tiny(change), tmp_path)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_a_recipe_in_the_folder_is_not_written_over(tiny, tmp_path):
    (tmp_path / "config.yaml").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds config.yaml but no run.json"):
        train(tiny(), tmp_path)
    assert (tmp_path / "config.yaml").read_text() == "mine"
