import pytest
import torch

from gatelm.analysis.probe.recording import keep, record
from gatelm.nn.attention.module import use_backend
from gatelm.nn.gates.sites import ATTENTION_SITES, BLOCK_TAPS, TAPS, site_taps

GATES = ("sdpa-element", "value", "scores-x", "ffn")


def hook_count(model):
    return sum(len(module._forward_hooks) for module in model.modules())


def test_recording_changes_nothing_and_leaves_nothing(build, batch):
    model, tokens = build(*GATES), batch().tokens
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    plain = model(tokens)
    seen = []
    with record(model, {"resid_out": lambda layer, tensor: seen.append(layer)}):
        recorded = model(tokens)
    assert torch.equal(plain, recorded)
    assert seen == [0, 1]
    assert hook_count(model) == 0
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    model(tokens)
    assert seen == [0, 1]


def test_hooks_are_removed_when_the_reader_raises(build, batch):
    model = build()

    def fail(layer, tensor):
        raise KeyError("reader")

    with pytest.raises(KeyError), record(model, {"q": fail, "k": fail}):
        model(batch().tokens)
    assert hook_count(model) == 0


def test_a_wrong_tap_leaves_no_hook_of_the_right_ones(build):
    model = build()
    with (
        pytest.raises(ValueError, match="unknown tap 'resid_ou'; did you mean 'resid_out'"),
        record(model, {"q": print, "resid_ou": print}),
    ):
        pass
    assert hook_count(model) == 0


@pytest.mark.parametrize(
    ("tap", "message"),
    [("v_gate", "there is no gate at that site"), ("probs", "use_backend.*eager")],
)
def test_a_tap_that_nothing_passes_is_refused(build, tap, message):
    with pytest.raises(ValueError, match=message), record(build(), {tap: print}):
        pass


def test_layers_are_chosen_by_index_from_either_end(build, batch):
    model = build()
    with keep(model, ["ffn"], layers=[-1]) as kept:
        model(batch().tokens)
    assert list(kept) == [("ffn", 1)]
    with pytest.raises(ValueError, match="there is no layer 2"), keep(model, ["ffn"], layers=[2]):
        pass


def test_keep_has_every_tap_with_its_shape(build, batch):
    model, tokens = build(*GATES), batch().tokens
    use_backend(model, "eager")
    taps = [tap for tap in TAPS if not tap.endswith("_gate")]
    gates = [f"{site}_gate" for site in ("sdpa", "v", "q_rot", "ffn")]
    with keep(model, taps + gates) as kept:
        model(tokens)
    assert set(kept) == {(tap, layer) for tap in taps + gates for layer in (0, 1)}
    shapes = {tap: tuple(kept[tap, 0].shape) for tap in taps + gates}
    assert shapes["q"] == (3, 24, 4, 8)
    assert shapes["k_rot_gated"] == (3, 24, 2, 8)
    assert shapes["probs"] == (3, 4, 24, 24)
    assert shapes["lse"] == (3, 24, 4)
    assert shapes["q_rot_gate"] == (3, 24, 4, 1)
    assert not kept["q", 0].requires_grad


def test_taps_are_the_same_under_every_backend(build, batch):
    taps = [*BLOCK_TAPS, *(t for s in ATTENTION_SITES for t in site_taps(s) if "gate" not in t)]
    model, kept = build(*GATES), {}
    for backend in ("eager", "sdpa"):
        use_backend(model, backend)
        with keep(model, taps) as kept[backend]:
            model(batch().tokens)
    for place, tensor in kept["eager"].items():
        torch.testing.assert_close(kept["sdpa"][place], tensor, rtol=1e-5, atol=1e-5)


def test_a_recorded_tensor_is_part_of_the_graph(build, batch):
    model, seen = build(), []
    with record(model, {"q": lambda layer, q: seen.append(q)}, layers=[0]):
        model(batch().tokens)
    seen[0].sum().backward()
    assert model.layers[0].attn.qkv.q.weight.grad.abs().sum() > 0
