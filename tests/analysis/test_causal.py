import pytest
import torch

from gatelm.analysis.causal import gate_interventions
from gatelm.analysis.look import look


def test_open_gates_have_the_loss_of_the_model_without_gates(build, batch):
    rows = [batch(), batch(seed=1)]
    model = build("sdpa-element")
    effects = {effect.name: effect for effect in gate_interventions(model, rows)}
    plain = look(model, rows).metrics()["val_loss"]
    ungated = look(build(), rows).metrics()["val_loss"]
    assert effects["open"].loss == pytest.approx(ungated, rel=1e-6)
    assert effects["open"].increase == pytest.approx(ungated - plain, rel=1e-4, abs=1e-6)


def test_shut_gates_leave_the_feed_forward_network(build, batch):
    rows = [batch()]
    model = build("sdpa-head")
    effects = {effect.name: effect for effect in gate_interventions(model, rows)}
    with torch.no_grad():
        for block in model.layers:
            block.attn.o_proj.weight.zero_()
    assert effects["shut"].loss == pytest.approx(look(model, rows).metrics()["val_loss"], rel=1e-6)


def test_a_static_gate_is_its_own_mean(build, batch):
    mark = torch.rand(3, 24, generator=torch.Generator().manual_seed(0)) < 0.5
    rows = [batch(marks={"m": mark})]
    effects = gate_interventions(build("sdpa-input-independent"), rows)
    mean = next(effect for effect in effects if effect.name == "mean")
    assert mean.increase == pytest.approx(0.0, abs=1e-6)
    assert mean.increase_by_mark == {"m": pytest.approx(0.0, abs=1e-6)}


def test_only_the_named_layers_change(build, batch):
    model, rows = build("sdpa-element"), [batch()]
    everywhere = gate_interventions(model, rows)
    last = gate_interventions(model, rows, layers=[-1])
    assert everywhere[1].loss != last[1].loss
    with torch.no_grad():
        model.layers[1].attn.o_proj.weight.zero_()
    assert last[1].loss == pytest.approx(look(model, rows).metrics()["val_loss"], rel=1e-6)


def test_without_gates_there_is_nothing_to_force(build, batch):
    with pytest.raises(ValueError, match="no gates to intervene on"):
        gate_interventions(build(), [batch()])
    with pytest.raises(ValueError, match="no batches"):
        gate_interventions(build("value"), [])
