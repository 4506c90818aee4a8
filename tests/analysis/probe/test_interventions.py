import pytest
import torch

from gatelm.analysis.probe.interventions import (
    clamp_channels,
    constant,
    intervene,
    zero_tokens,
)
from gatelm.analysis.probe.recording import keep
from gatelm.nn.attention.module import use_backend


@pytest.mark.parametrize("gate", ["sdpa-element", "sdpa-head", "value", "output", "residual"])
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_a_gate_forced_shut_gives_no_attention_contribution(build, batch, gate, backend):
    model = build(gate)
    use_backend(model, backend)
    site = model.cfg.layer.gates[0].site
    taps = ["resid_in", "resid_mid", "out_gated"]
    with intervene(model, {f"{site}_gate": constant(0.0)}), keep(model, taps) as kept:
        model(batch().tokens)
    for layer in (0, 1):
        assert torch.equal(kept["resid_mid", layer], kept["resid_in", layer])
        assert not kept["out_gated", layer].any()
    assert not any(module._forward_hooks for module in model.modules())


def test_an_open_gate_is_no_gate(build, batch):
    gated, plain = build("sdpa-element"), build()
    tokens = batch().tokens
    with intervene(gated, {"sdpa_gate": constant(1.0)}):
        torch.testing.assert_close(gated(tokens), plain(tokens), rtol=1e-6, atol=1e-6)


def test_each_layer_gets_its_own_scores(build, batch):
    model = build("sdpa-head")
    values = {layer: torch.full((4, 1), 0.25 * (layer + 1)) for layer in (0, 1)}
    with (
        intervene(model, {"sdpa_gate": lambda layer, scores: values[layer].expand_as(scores)}),
        keep(model, ["sdpa", "sdpa_gated"]) as kept,
    ):
        model(batch().tokens)
    for layer in (0, 1):
        expected = kept["sdpa", layer] * 0.25 * (layer + 1)
        torch.testing.assert_close(kept["sdpa_gated", layer], expected)


def test_zeroed_first_values_leave_the_other_keys_part(build, batch):
    model, rows = build(), batch()
    use_backend(model, "eager")
    where = torch.zeros_like(rows.tokens, dtype=torch.bool)
    where[:, 0] = True
    with keep(model, ["v", "probs"], layers=[0]) as kept:
        model(rows.tokens)
    with (
        intervene(model, {"v_gated": zero_tokens(where)}, layers=[0]),
        keep(model, ["sdpa"], layers=[0]) as changed,
    ):
        model(rows.tokens)
    values = kept["v", 0].repeat_interleave(2, dim=2)
    expected = torch.einsum("bnts,bsnh->btnh", kept["probs", 0][..., 1:], values[:, 1:])
    torch.testing.assert_close(changed["sdpa", 0], expected, rtol=1e-5, atol=1e-5)


def test_only_the_named_channels_are_clamped(build, batch):
    model, tokens = build(), batch().tokens
    with keep(model, ["resid_out"], layers=[0]) as plain:
        model(tokens)
    with (
        intervene(model, {"resid_out": clamp_channels([3, 5], 0.1)}, layers=[0]),
        keep(model, ["resid_out"], layers=[0]) as kept,
    ):
        model(tokens)
    before, after = plain["resid_out", 0], kept["resid_out", 0]
    torch.testing.assert_close(after[..., [3, 5]], before[..., [3, 5]].clamp(-0.1, 0.1))
    others = [c for c in range(32) if c not in (3, 5)]
    assert torch.equal(after[..., others], before[..., others])


def test_gradients_pass_an_intervention(build, batch):
    model = build("sdpa-element")
    with intervene(model, {"sdpa_gate": lambda layer, scores: scores * 0.5}):
        model(batch().tokens).sum().backward()
    assert model.layers[0].attn.gates["sdpa"].proj["x"].weight.grad.abs().sum() > 0


def test_a_change_of_shape_is_refused(build, batch):
    model = build()
    with (
        pytest.raises(ValueError, match="tap 'q' of layer 0 made"),
        intervene(model, {"q": lambda layer, q: q[:, :1]}),
    ):
        model(batch().tokens)
    assert not any(module._forward_hooks for module in model.modules())
