import pytest
import torch

from gatelm.analysis.probe.gatelm_probe import GatelmProbe, as_probe
from gatelm.analysis.probe.protocol import EMBEDDING, AttentionCall, GateWeights, Observer, Probe
from gatelm.analysis.probe.recording import keep
from gatelm.nn.attention.module import use_backend
from gatelm.testing.statistics import naive_weights

GATES = ("sdpa-element", "value", "scores-x", "ffn")


class Keeper(Observer):
    def __init__(self):
        self.order = []
        self.calls: dict[int, AttentionCall] = {}
        self.seen = {}

    def attention(self, call):
        self.order.append(("attention", call.layer))
        self.calls[call.layer] = call

    def residual(self, layer, h):
        self.order.append(("residual", layer))
        self.seen["residual", layer] = h

    def gate(self, layer, site, scores):
        self.order.append((site, layer))
        self.seen[site, layer] = scores

    def heads(self, layer, before, after):
        self.order.append(("heads", layer))
        self.seen["before", layer], self.seen["after", layer] = before, after

    def branch(self, layer, y):
        self.order.append(("branch", layer))
        self.seen["branch", layer] = y


@pytest.fixture
def documents():
    return torch.tensor([[-1, -1] + [0] * 9 + [1] * 13, [0] * 20 + [-1] * 4, [0] * 24])


def test_it_is_a_probe(build):
    probe = GatelmProbe(build(*GATES), "tiny")
    assert isinstance(probe, Probe)
    assert isinstance(probe, GateWeights)
    assert (probe.name, probe.num_layers, probe.vocab_size) == ("tiny", 2, 32)
    assert probe.attention_layers == (0, 1)
    assert probe.unread == {}
    assert probe.gate_sites == dict.fromkeys((0, 1), ("v", "q_rot", "sdpa", "ffn"))
    assert probe.parameters == sum(p.numel() for p in probe.model.parameters())
    assert as_probe(probe) is probe


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("window_tokens", [None, 5])
@pytest.mark.parametrize("positions", [{}, {"rope": None, "position_bias": {}}])
def test_what_an_observer_sees_is_the_forward(
    build, batch, documents, backend, window_tokens, positions
):
    """The weights of q, k and mask, summed over v, are the heads before the gate, and so on to the
    output: nothing that is shown is beside the forward."""
    model = build(*GATES, window_tokens=window_tokens, qk_norm={}, **positions)
    use_backend(model, backend)
    tokens, keeper = batch().tokens, Keeper()
    hidden = GatelmProbe(model).observe(tokens, documents, keeper)
    assert torch.equal(hidden, model.hidden(tokens, documents=documents))
    for layer in (0, 1):
        call = keeper.calls[layer]
        assert call.window_tokens == window_tokens
        weights = naive_weights(
            call.q,
            call.k,
            call.mask,
            scale=call.scale,
            window_tokens=call.window_tokens,
            alibi_slopes=call.alibi_slopes,
        )[1]
        values = call.v.repeat_interleave(2, dim=2)
        before = torch.einsum("bnts,bsnh->btnh", weights, values)
        torch.testing.assert_close(keeper.seen["before", layer], before, rtol=1e-4, atol=1e-5)
        gated = keeper.seen["before", layer] * keeper.seen["sdpa", layer]
        torch.testing.assert_close(keeper.seen["after", layer], gated)
        o_proj = model.layers[layer].attn.o_proj
        torch.testing.assert_close(
            keeper.seen["branch", layer], o_proj(keeper.seen["after", layer].flatten(2))
        )
    last = model.final_norm(keeper.seen["residual", 1])
    torch.testing.assert_close(last, hidden)


def test_each_layer_ends_with_its_residual(build, batch):
    keeper = Keeper()
    GatelmProbe(build("sdpa-head", "value")).observe(batch().tokens, None, keeper)
    layer = ["v", "attention", "sdpa", "heads", "branch", "residual"]
    expected = [(name, i) for i in (0, 1) for name in layer]
    assert keeper.order == [("residual", EMBEDDING), *expected]


def test_without_a_gate_the_heads_are_the_same_before_and_after(build, batch):
    keeper = Keeper()
    GatelmProbe(build()).observe(batch().tokens, None, keeper)
    assert torch.equal(keeper.seen["before", 1], keeper.seen["after", 1])


def test_nothing_is_left_behind(build, batch):
    model = build("sdpa-element", dropout=0.5).train()
    probe = GatelmProbe(model)
    hidden = probe.observe(batch().tokens, None, Keeper())
    assert not hidden.requires_grad
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.equal(hidden, probe.observe(batch().tokens))


def test_changes_reach_every_forward_and_observers(build, batch):
    probe, tokens = GatelmProbe(build("sdpa-head", "value")), batch().tokens
    ungated = GatelmProbe(build()).observe(tokens)
    plain = probe.observe(tokens)
    keeper = Keeper()
    with probe.intervene({"gate": lambda layer, scores: torch.ones_like(scores)}):
        opened = probe.observe(tokens, None, keeper)
    torch.testing.assert_close(opened, ungated)
    assert bool((keeper.seen["sdpa", 0] == 1).all())
    assert torch.equal(probe.observe(tokens), plain)
    with probe.intervene({"values": lambda layer, v: v * 0}):
        probe.observe(tokens, None, keeper)
    assert float(keeper.calls[1].v.abs().max()) == 0.0
    assert float(keeper.seen["before", 1].abs().max()) == 0.0


def test_the_residual_is_changed_from_the_embedding_on(build, batch):
    probe, tokens, layers = GatelmProbe(build()), batch().tokens, []

    def change(layer, h):
        layers.append(layer)
        return torch.full_like(h, float(layer + 2))

    keeper = Keeper()
    with probe.intervene({"residual": change}):
        probe.observe(tokens, None, keeper)
    assert layers == [EMBEDDING, 0, 1]
    for layer in layers:
        assert bool((keeper.seen["residual", layer] == layer + 2).all())


def test_a_change_that_cannot_be_made_is_refused(build):
    with (
        pytest.raises(ValueError, match="unknown change 'gates'; did you mean 'gate'"),
        GatelmProbe(build("value")).intervene({"gates": lambda layer, x: x}),
    ):
        pass
    with (
        pytest.raises(ValueError, match="no gate to change"),
        GatelmProbe(build()).intervene({"gate": lambda layer, x: x}),
    ):
        pass


@pytest.mark.parametrize("gate", ["sdpa-head", "sdpa-element", {"rank": 3, "inputs": ["x", "q"]}])
def test_weight_norms_are_those_of_the_map(build, batch, gate):
    """From the logits' change under unit inputs, whatever the parameters are."""
    model = build(gate)
    norms = GatelmProbe(model).gate_weight_norms()
    assert norms.keys() == {(0, "sdpa"), (1, "sdpa")}
    module = model.layers[1].attn.gates["sdpa"]
    squares = torch.zeros(4, dtype=torch.float64)
    for projection in module.proj.values():
        width = projection.in_dim * projection.groups
        columns = projection(torch.eye(width)).detach().double()
        squares += columns.unflatten(-1, (4, -1)).square().sum(dim=(0, 2))
    torch.testing.assert_close(norms[1, "sdpa"], squares.sqrt())


def test_a_gate_without_weights_has_no_norm(build):
    assert GatelmProbe(build("sdpa-input-independent")).gate_weight_norms() == {}


def test_taps_and_probe_show_the_same(build, batch):
    model, tokens, keeper = build("output"), batch().tokens, Keeper()
    with keep(model, ["resid_in", "out", "out_gate"]) as kept:
        GatelmProbe(model).observe(tokens, None, keeper)
    assert torch.equal(kept["resid_in", 0], keeper.seen["residual", EMBEDDING])
    assert torch.equal(kept["out", 1], keeper.seen["branch", 1])
    assert torch.equal(kept["out_gate", 1], keeper.seen["out", 1])


def test_what_is_no_decoder_is_refused():
    with pytest.raises(ValueError, match="not a gatelm decoder"):
        as_probe(torch.nn.Linear(2, 2))
