import math

import pytest
import torch

from gatelm.analysis.causal import control_positions, interventions
from gatelm.analysis.measure import analyze_batches
from gatelm.analysis.probe.gatelm_probe import GatelmProbe
from gatelm.analysis.probe.layout import Layout
from gatelm.analysis.probe.recording import keep


def effects_of(model, rows, **settings):
    return {effect.name: effect for effect in interventions(model, rows, **settings)}


def loss_of(model, rows):
    return analyze_batches(model, rows, map_tokens=0).metrics()["val_loss"]


def test_open_gates_have_the_loss_of_the_model_without_gates(build, batch):
    rows = [batch(), batch(seed=1)]
    model = build("sdpa-element")
    effects = effects_of(model, rows)
    plain, ungated = loss_of(model, rows), loss_of(build(), rows)
    assert effects["none"].loss == pytest.approx(plain, rel=1e-6)
    assert effects["gate_open"].loss == pytest.approx(ungated, rel=1e-6)
    assert effects["gate_open"].increase == pytest.approx(ungated - plain, rel=1e-4, abs=1e-6)


def test_shut_gates_leave_the_feed_forward_network(build, batch):
    rows = [batch()]
    model = build("sdpa-head")
    effects = effects_of(model, rows)
    with torch.no_grad():
        for block in model.layers:
            block.attn.o_proj.weight.zero_()
    assert effects["gate_shut"].loss == pytest.approx(loss_of(model, rows), rel=1e-6)


def test_a_static_gate_is_its_own_mean_and_constant(build, batch):
    mark = torch.rand(3, 24, generator=torch.Generator().manual_seed(0)) < 0.5
    rows = [batch(marks={"m": mark})]
    model = build("sdpa-input-independent")
    with torch.no_grad():
        for block in model.layers:
            block.attn.gates["sdpa"].bias.fill_(math.log(0.25 / 0.75))
    effects = effects_of(model, rows, constants=(0.25, 0.5))
    for name in ("gate_mean", "gate_constant_0.25"):
        assert effects[name].increase == pytest.approx(0.0, abs=1e-5)
        assert effects[name].increase_by_mark == {"m": pytest.approx(0.0, abs=1e-5)}
    assert abs(effects["gate_constant_0.5"].increase) > 1e-3


def test_each_site_of_a_layer_gets_its_own_mean(build, batch):
    """Static gates of three sites with different scores: means change nothing if not mixed up."""
    sites = [{"site": s, "inputs": ["const"], "granularity": "head"} for s in ("v", "sdpa", "ffn")]
    model = build(*sites)
    with torch.no_grad():
        for block in model.layers:
            block.attn.gates["v"].bias.fill_(2.0)
            block.attn.gates["sdpa"].bias.fill_(0.0)
            block.gates["ffn"].bias.fill_(-2.0)
    effects = effects_of(model, [batch(), batch(seed=1)])
    assert effects["gate_mean"].increase == pytest.approx(0.0, abs=1e-5)


def test_zero_values_are_a_key_that_gives_nothing(build, batch):
    """The loss with the values projected to zero by hand."""
    rows, model = [batch()], build()
    effects = effects_of(model, rows, value_positions=(0, 3))

    def zeroed(position):
        def hook(module, args, output):
            output = output.clone()
            output[:, position] = 0
            return output

        hooks = [block.attn.qkv.v.register_forward_hook(hook) for block in model.layers]
        loss = loss_of(model, rows)
        for handle in hooks:
            handle.remove()
        return loss

    for position in (0, 3):
        expected = zeroed(position)
        assert effects[f"values_zero_{position}"].loss == pytest.approx(expected, rel=1e-6)
        assert abs(effects[f"values_zero_{position}"].increase) > 1e-4
    assert "2 other position(s)" in effects["values_zero_control"].what


def test_massive_activations_are_clamped_or_set_to_their_mean(build, batch):
    """Every token has the same spike in channel 5, so the mean changes nothing; the clamp does."""
    model, rows = build(scale=1.0), [batch()]
    with torch.no_grad():
        model.embedding.weight[:, 5] = 3000.0
        limits = []
        for block in model.layers:
            with keep(model, ["resid_out"], layers=[block.layer_index]) as kept:
                model.hidden(rows[0].tokens)
            hidden = kept["resid_out", block.layer_index].clone()
            hidden[..., 5] = 0
            limits.append(float(hidden.abs().max()))
    effects = effects_of(model, rows)
    assert effects["massive_mean"].increase == pytest.approx(0.0, abs=1e-4)
    assert "channel(s) 5 after layers 0, 1" in effects["massive_clamp"].what

    def clamp(module, args, output):
        output = output.clone()
        output[..., 5].clamp_(-limits[module.layer_index], limits[module.layer_index])
        return output

    for block in model.layers:
        block.register_forward_hook(clamp)
    assert effects["massive_clamp"].loss == pytest.approx(loss_of(model, rows), rel=1e-5)
    assert abs(effects["massive_clamp"].increase) > 1e-3


def test_only_the_named_layers_change(build, batch):
    model, rows = build("sdpa-element"), [batch()]
    everywhere, last = effects_of(model, rows), effects_of(model, rows, layers=[-1])
    assert everywhere["values_zero_0"].loss != last["values_zero_0"].loss
    with torch.no_grad():
        model.layers[1].attn.o_proj.weight.zero_()
    assert last["gate_shut"].loss == pytest.approx(loss_of(model, rows), rel=1e-6)


def test_what_a_model_has_not_is_left_out(build, batch):
    assert [e.name for e in interventions(build(), [batch()])] == [
        "none",
        "values_zero_0",
        "values_zero_control",
    ]
    assert [e.name for e in interventions(build(), [batch()], value_positions=())] == ["none"]


class Unreachable(GatelmProbe):
    def intervene(self, changes):
        if "values" in changes:
            raise ValueError("its values cannot be reached")
        return super().intervene(changes)


def test_what_cannot_be_done_is_skipped_with_the_reason(build, batch):
    effects = effects_of(Unreachable(build("sdpa-head")), [batch()])
    skipped = effects["values_zero_0"]
    assert skipped.skipped == "its values cannot be reached"
    assert skipped.to_json()["loss"] is None
    assert effects["gate_shut"].skipped is None


def test_mistakes_are_refused(build, batch):
    with pytest.raises(ValueError, match="no batches"):
        interventions(build("value"), [])
    with pytest.raises(ValueError, match="there is no layer 2: the model has 2"):
        interventions(build(), [batch()], layers=[2])


def test_the_model_is_as_it_was_and_progress_is_told(build, batch):
    model, rows, told = build("sdpa-head"), [batch()], []
    before = loss_of(model, rows)
    model.train()
    interventions(model, rows, progress=lambda *now: told.append(now))
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert loss_of(model, rows) == before
    assert told[0] == ("gate_open", 0, 6)
    assert told[-1] == ("values_zero_control", 5, 6)


def test_control_positions_are_others_of_the_same_documents():
    documents = torch.tensor([[-1, 0, 0, 0, 0, 0, 1, 1, 1], [2, 2, 2, 2, 2, 3, -1, -1, -1]])
    layout = Layout.of(documents, 2, 9)
    chosen = control_positions(layout, (0, 2))
    for row, document, count in ((0, 0, 2), (0, 1, 1), (1, 2, 2), (1, 3, 0)):
        here = chosen[row] & (documents[row] == document)
        assert int(here.sum()) == count
        assert not {0, 2} & set(layout.position[row][here].tolist())
    assert not chosen[documents == -1].any()
    assert torch.equal(chosen, control_positions(layout, (0, 2)))
