"""Arms made from a registry, and what one new entry of the gates' activations brings."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

from gatelm.cli.config import app as config_app
from gatelm.config import ConfigError
from gatelm.nn.gates.gate import ACTIVATIONS, GateConfig
from gatelm.study.planning.arms import ArmsFrom, with_made_arms
from gatelm.study.planning.plan import plan
from gatelm.study.planning.spec import load_study

TEMPLATE = {
    "registry": "activations",
    "name": "add-{name}",
    "set": {"model.layer.gates": [{"activation": "{name}", "operation": "add"}], "optim.lr": 0.1},
}


def test_an_arm_for_each_entry():
    arms = ArmsFrom.parse(TEMPLATE).arms()
    assert list(arms) == [f"add-{name}" for name in ACTIVATIONS]
    assert arms["add-relu"] == {
        "model.layer.gates": [{"activation": "relu", "operation": "add"}],
        "optim.lr": 0.1,
    }


def test_arms_written_out_come_first_and_stay():
    templates = [ArmsFrom.parse(TEMPLATE)]
    arms = with_made_arms({"none": {}, "add-silu": {"optim.lr": 1.0}}, templates)
    assert list(arms)[:3] == ["none", "add-silu", "add-sigmoid"]
    assert arms["add-silu"] == {"optim.lr": 1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"registry": "activation"}, "did you mean 'activations'"),
        ({"name": "the-same"}, "the same for every entry"),
        ({"sets": {}}, "unknown key 'sets'; did you mean 'set'"),
    ],
)
def test_mistakes(make_study, change, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make_study(arms_from=[{**TEMPLATE, **change}])
    assert "arms_from.0" in str(caught.value)


def test_a_part_that_was_read_has_no_templates_left(make_study):
    part = make_study(arms_from=[TEMPLATE]).parts["main"]
    assert part.arms_from == ()
    assert "add-tanh01" in part.arms
    assert type(part).parse(part.tree()) == part


def test_one_new_activation_is_everywhere(monkeypatch):
    with pytest.raises(ValueError, match="unknown activation 'cube'"):
        GateConfig(activation="cube")
    monkeypatch.setitem(ACTIVATIONS, "cube", lambda z: z**3)
    assert GateConfig(activation="cube").activation == "cube"
    assert "  cube" in CliRunner().invoke(config_app, ["gates"]).stdout
    study = load_study("activation", ["parts.text.seeds=[0]"])
    assert "cube" in study.parts["mechanism"].arms
    text = study.parts["text"]
    text = text.replace(arms={arm: text.arms[arm] for arm in ("none", "cube", "add-cube")})
    planned = {run.arm: run for run in plan(study.replace(parts={"text": text})).runs}
    assert planned["cube"].gate_parameters > 0
    gate = planned["add-cube"].config.model.layer.gates[0]
    assert isinstance(gate, GateConfig)
    assert (gate.activation, gate.operation) == ("cube", "add")
    assert torch.equal(ACTIVATIONS["cube"](torch.tensor(2.0)), torch.tensor(8.0))
