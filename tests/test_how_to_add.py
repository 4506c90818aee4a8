"""CONTRIBUTING, "How to add": one entry is enough. A dummy of each kind is added for one test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import LlamaConfig
from typer.testing import CliRunner

import gatelm
from gatelm.analysis import intervene
from gatelm.analysis.metrics.registry import METRICS, describe
from gatelm.analysis.probe.interventions import constant
from gatelm.cli.config import app as config_app
from gatelm.cli.eval.commands import _split_tasks
from gatelm.cli.main import app
from gatelm.config import ConfigError
from gatelm.config.load import merge
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.hf.convert.checkpoint import read_source
from gatelm.hf.convert.convert import ConvertOptions, convert
from gatelm.hf.convert.families.registry import FORMATS, table
from gatelm.hf.convert.formats.format import Format
from gatelm.hf.convert.formats.tensors import LLAMA_NAMES, Names
from gatelm.hf.probe.tokenizer import GatelmTokenizer
from gatelm.longcontext.retrieval import RetrievalRequest, ask, scores
from gatelm.longcontext.scaling import METHODS, scaled
from gatelm.longcontext.tasks import TASKS
from gatelm.longcontext.tasks.base import Draft, Pieces, RetrievalTask
from gatelm.nn.gates.gate import ACTIVATIONS, GateConfig
from gatelm.nn.gates.presets import GATE_PRESETS, PRESET_DOCS
from gatelm.nn.model import ModelConfig
from gatelm.nn.positions.scaling import LinearScaling
from gatelm.study.planning.plan import plan
from gatelm.study.planning.spec import StudyConfig
from gatelm.train.saving.export import export_model
from gatelm.train.trainer import train
from helpers import TINY_RUN, decoder, random_ids, tiny_run

DUMMY = "dummy"


def model_with(gate: object) -> ModelConfig:
    layer = {**TINY_RUN["model"]["layer"], "gates": [gate]}
    return ModelConfig.parse({**TINY_RUN["model"], "vocab_size": 19, "layer": layer})


def listed_gates() -> dict:
    done = CliRunner().invoke(config_app, ["gates", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def study(**part: object) -> StudyConfig:
    base = {name: value for name, value in TINY_RUN.items() if name not in ("name", "seed")}
    arms = {"none": {"model.layer.gates": []}}
    part = {"base": base, "arms": arms, "baseline": "none", "seeds": [0], **part}
    return StudyConfig.parse({"name": "small", "parts": {"only": part}})


def arms_of(registry: str, sets: object) -> dict:
    template = {"registry": registry, "set": {"model.layer.gates": [sets]}}
    runs = plan(study(arms_from=[template], metrics=["val_loss"])).runs
    return {run.arm: run.config for run in runs}


@pytest.fixture
def an_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    quarter: Callable[[torch.Tensor], torch.Tensor] = lambda z: 0 * z + 0.25  # noqa: E731
    monkeypatch.setitem(ACTIVATIONS, DUMMY, quarter)


@pytest.mark.usefixtures("an_activation")
def test_an_activation_is_a_config_value_a_study_value_and_a_result(tmp_path) -> None:
    gate = {"site": "sdpa", "activation": DUMMY}
    assert DUMMY in listed_gates()["axes"]["activation"]
    assert DUMMY in arms_of("activations", {"activation": "{name}"})
    model, ids = decoder(model_with(gate), scale=8.0), random_ids(19, 2, 9)
    with torch.no_grad(), intervene(model, {"sdpa_gate": constant(0.25)}):
        forced = model(ids)
    with torch.no_grad():
        torch.testing.assert_close(model(ids), forced, rtol=0, atol=0)
    run = train(tiny_run({"model": {"layer": {"gates": [gate]}}}), tmp_path)
    assert run.metrics["gate_mean"] == pytest.approx(0.25)


def test_without_its_entry_an_activation_is_unknown() -> None:
    with pytest.raises(ConfigError, match=f"unknown activation '{DUMMY}'"):
        model_with({"site": "sdpa", "activation": DUMMY})


def test_a_named_gate_is_a_config_value_and_a_study_value(monkeypatch) -> None:
    gate = GateConfig(site="v", granularity="head", activation="tanh01")
    monkeypatch.setitem(GATE_PRESETS, DUMMY, gate)
    monkeypatch.setitem(PRESET_DOCS, DUMMY, ("", "", "a gate of this test"))
    assert model_with(DUMMY).layer.gates == (gate,)
    assert listed_gates()["presets"][DUMMY] == "a gate of this test"
    assert arms_of("gate_presets", "{name}")[DUMMY].model.layer.gates == (gate,)


def test_every_named_gate_says_what_it_is() -> None:
    assert GATE_PRESETS.keys() == PRESET_DOCS.keys()


def test_a_metric_has_its_definition_in_studies(monkeypatch) -> None:
    metric = replace(METRICS["val_loss"], name=DUMMY, definition="A number of this test.")
    with pytest.raises(ConfigError, match=f"unknown metric '{DUMMY}'"):
        plan(study(metrics=[DUMMY]))
    monkeypatch.setitem(METRICS, DUMMY, metric)
    assert describe(DUMMY).definition == "A number of this test."
    assert plan(study(metrics=[DUMMY])).study.parts["only"].metrics == (DUMMY,)


def test_a_metric_is_measured_in_every_run(monkeypatch, tmp_path) -> None:
    twice = lambda totals: 2 * totals.loss.loss()  # noqa: E731
    metric = replace(METRICS["val_ppl"], name=DUMMY, read=twice)
    monkeypatch.setitem(METRICS, DUMMY, metric)
    metrics = train(tiny_run(), tmp_path).metrics
    assert metrics[DUMMY] == pytest.approx(2 * metrics["val_loss"])


def test_a_retrieval_task_is_a_name_for_eval_and_has_a_score(monkeypatch) -> None:
    def draft(random, setting):
        number = str(random.randrange(100, 1000))
        return Draft(
            intro=f"The number is {number}.",
            question=" What is the number?",
            reply=f" {number}",
            references=(number,),
            haystack=lambda pieces: iter(lambda: pieces.next(" Nothing here."), None),
        )

    monkeypatch.setitem(TASKS, DUMMY, RetrievalTask(DUMMY, "a number", "this test", draft))
    assert _split_tasks(f"{DUMMY},arc_easy") == ((DUMMY,), ["arc_easy"])
    assert DUMMY in _split_tasks("all")[0]
    pieces = Pieces(GatelmTokenizer(byte_tokenizer()))
    request = RetrievalRequest((DUMMY,), (200,), depths=1, samples=2)
    assert scores(ask(request, pieces, lambda sample: sample.reply)) == {DUMMY: {200: 100.0}}


def test_a_scaling_of_positions_is_a_method_of_longer_rows(monkeypatch, tmp_path) -> None:
    def half(original: int, factor: float) -> LinearScaling:
        return LinearScaling(original_tokens=original, factor=factor / 2)

    monkeypatch.setitem(METHODS, DUMMY, half)
    cfg = tiny_run({"longer": {"methods": ["none", DUMMY], "factors": [2], "sequences": 2}})
    rope = scaled(cfg.model, DUMMY, 2, 16).layers()[0].mixer.rope
    assert rope.scaling == LinearScaling(original_tokens=16, factor=1.0)
    metrics = train(cfg, tmp_path).metrics
    name = f"val_loss_beyond_at_2x_{DUMMY}"
    # half of twice the length is no scaling at all
    assert metrics[name] == pytest.approx(metrics["val_loss_beyond_at_2x_none"])
    assert f"scaled by {DUMMY}" in describe(name).definition


ADDED = {
    "nn/ffn/dummy.py": """
from typing import Literal

from torch import nn

from gatelm.nn.ffn.mlp import MLP, MLPConfig


class DummyConfig(MLPConfig):
    kind: Literal["dummy"] = "dummy"
    activation: str = "relu"
""",
    "nn/mixers/dummy.py": """
from typing import Literal

from gatelm.nn.mixers.linear import LinearAttentionConfig


class DummyConfig(LinearAttentionConfig):
    kind: Literal["dummy"] = "dummy"
""",
    "optim/dummy.py": """
from typing import Literal

import torch

from gatelm.optim.base import OptimizerConfig


class DummyConfig(OptimizerConfig):
    name: Literal["dummy"] = "dummy"

    def make(self, groups):
        return torch.optim.SGD(groups, lr=self.lr)

    def first_state(self, parameter):
        return {}
""",
}
"""Files that a contributor would write; the dummies change as little as they can."""

ENTRIES = {
    "nn/ffn/config.py": (
        "    | Annotated[NoFFNConfig,",
        '    | Annotated[DummyConfig, Tag("dummy")]\n    | Annotated[NoFFNConfig,',
        "from gatelm.nn.ffn.dummy import DummyConfig",
    ),
    "nn/mixers/config.py": (
        "    | Annotated[Mamba2Config,",
        '    | Annotated[DummyConfig, Tag("dummy")]\n    | Annotated[Mamba2Config,',
        "from gatelm.nn.mixers.dummy import DummyConfig",
    ),
    "optim/config.py": (
        "OptimConfig = AdamWConfig",
        'OptimConfig = Annotated[Annotated[AdamWConfig, Tag("adamw")]\n'
        '    | Annotated[DummyConfig, Tag("dummy")], by_kind("adamw", key="name")]',
        "from typing import Annotated\nfrom pydantic import Tag\n"
        "from gatelm.config.base import by_kind\nfrom gatelm.optim.dummy import DummyConfig",
    ),
}
"""The entries: what stands in a file, what takes its place, and the imports."""


@pytest.fixture(scope="module")
def grown(tmp_path_factory) -> Callable[..., subprocess.CompletedProcess]:
    """Runs the command line of a copy of the package to which the dummies were added."""
    root = tmp_path_factory.mktemp("grown")
    package = root / "src" / "gatelm"
    shutil.copytree(Path(gatelm.__file__).parent, package)
    for name, text in ADDED.items():
        (package / name).write_text(text)
    for name, (old, new, imports) in ENTRIES.items():
        text = (package / name).read_text()
        assert text.count(old) == 1
        text = text.replace(old, new).replace(
            "import annotations\n", f"import annotations\n{imports}\n"
        )
        (package / name).write_text(text)

    def run(*words: str) -> subprocess.CompletedProcess:
        paths = os.pathsep.join([str(root / "src"), os.environ.get("PYTHONPATH", "")])
        return subprocess.run(
            [sys.executable, "-m", "gatelm", *words],
            cwd=root,
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_network_a_mixer_and_an_optimiser_are_a_file_and_an_entry(grown, tmp_path) -> None:
    recipe = tmp_path / "run.yaml"
    tree = merge(
        TINY_RUN,
        {
            "model": {
                "layer": {
                    "mixer": {"kind": DUMMY, "num_heads": 2},
                    "ffn": {"kind": DUMMY, "ffn_dim": 24},
                    "gates": ["sdpa-head"],
                }
            },
            "optim": {"name": DUMMY},
        },
    )
    recipe.write_text(yaml.safe_dump(tree))
    done = grown("train", str(recipe), "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    layer = config["model"]["layer"]
    assert (layer["mixer"]["kind"], layer["ffn"]["kind"]) == (DUMMY, DUMMY)
    assert config["optim"]["name"] == DUMMY
    assert json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]["val_loss"] > 0
    info = grown("info", str(recipe))
    assert info.returncode == 0, info.stderr
    wrong = grown("train", str(recipe), "--set", "optim.name=dumy", "--out", str(tmp_path / "no"))
    assert wrong.returncode == 2
    assert "dummy" in wrong.stderr


class DummyFormat(Format):
    """Llama under other names, with a key of its own."""

    name = model_type = DUMMY
    label = "Dummy"
    architecture = "LlamaForCausalLM"
    names = Names({**LLAMA_NAMES.layer, "attn.o_proj": "self_attn.out"})
    keys = "dummy_key"
    notes = "a family of this test"
    qk_norm = "never"

    def library_config(self, text):
        return LlamaConfig.from_dict({k: v for k, v in text.items() if k != "model_type"})

    def config_keys(self, cfg):
        return {"dummy_key": cfg.num_layers}


def test_a_model_family_is_read_and_written_and_in_the_document(monkeypatch, tmp_path) -> None:
    tree = model_with("sdpa-head").tree()
    tree["layer"]["gates"] = []
    export_model(tmp_path / "ours", decoder(tree, dtype=torch.float32), None, {})
    to_dummy = ["convert", str(tmp_path / "ours"), str(tmp_path / "theirs"), "--to", DUMMY]
    asked = CliRunner().invoke(app, to_dummy)
    assert "no such format" in str(asked.exception)
    monkeypatch.setitem(FORMATS, DUMMY, DummyFormat())
    row = "| `dummy` | yes | yes | none | w | a family of this test |"
    assert row in table()
    planned = CliRunner().invoke(app, ["convert", str(tmp_path / "ours"), "--plan", "--json"])
    options = {option["format"]: option for option in json.loads(planned.stdout)}
    assert options[DUMMY]["possible"]
    with pytest.raises(ConfigError, match=r"no such format; .*'dummy'"):
        convert(tmp_path / "ours", tmp_path / "theirs", ConvertOptions(to="dumy"))
    written = CliRunner().invoke(app, [*to_dummy, "--no-verify"])
    assert written.exit_code == 0, written.output
    theirs = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert (theirs["model_type"], theirs["dummy_key"]) == (DUMMY, 2)
    tensors = load_file(tmp_path / "theirs" / "model.safetensors")
    assert "model.layers.1.self_attn.out.weight" in tensors
    there, back = read_source(tmp_path / "ours"), read_source(tmp_path / "theirs")
    assert back.family == "Dummy"
    assert there.state.keys() == back.state.keys()
    assert all(torch.equal(there.state[name], back.state[name]) for name in there.state)
