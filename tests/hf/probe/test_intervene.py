import pytest
import torch

from gatelm.analysis.probe.protocol import EMBEDDING
from gatelm.testing.statistics import naive_weights

FAMILIES = ("llama", "gpt2", "gemma2", "gpt_oss", "qwen3_next", "opt", "deepseek_v3")


@pytest.mark.parametrize("family", FAMILIES)
def test_values_without_the_first_token(family, probes, tokens, kept):
    """Zero the first value: what the heads get is the rest of the sum."""
    probe = probes(family)
    probe.observe(tokens, None, kept)
    first = probe.attention_layers[0]

    def drop(layer, v):
        return v.index_fill(1, torch.tensor([0]), 0.0) if layer == first else v

    changed = type(kept)()
    with probe.intervene({"values": drop}):
        probe.observe(tokens, None, changed)
    call = kept.calls[first]
    assert changed.calls[first].v[:, 0].eq(0).all()
    torch.testing.assert_close(changed.calls[first].v[:, 1:], call.v[:, 1:])
    torch.testing.assert_close(changed.calls[first].q, call.q)
    weights = naive_weights(
        call.q,
        call.k,
        call.mask,
        scale=call.scale,
        window_tokens=call.window_tokens,
        softcap=call.softcap,
        sink_logits=call.sink_logits,
    )[1]
    value = call.v[:, :1].repeat_interleave(call.q.shape[2] // call.v.shape[2], dim=2)
    lost = weights[..., 0].transpose(1, 2)[..., None] * value
    expected = kept.before[first] - lost
    torch.testing.assert_close(changed.before[first], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("family", [*FAMILIES, "bloom", "falcon", "hrm_text"])
def test_residual_changes_pass_on_and_are_shown(family, probes, models, tokens, kept):
    probe = probes(family)
    plain = type(kept)()
    expected = probe.observe(tokens, None, plain)
    shift = torch.linspace(-1.0, 1.0, 32)
    with probe.intervene({"residual": lambda layer, h: h + shift if layer == EMBEDDING else h}):
        hidden = probe.observe(tokens, None, kept)
    torch.testing.assert_close(kept.stream[EMBEDDING], plain.stream[EMBEDDING] + shift)
    assert not torch.allclose(kept.stream[0], plain.stream[0], atol=1e-3)
    assert not torch.allclose(hidden, expected, atol=1e-3)
    last = probe.num_layers - 1
    put_back = {"residual": lambda layer, h: plain.stream[last] if layer == last else h * 0.5}
    with probe.intervene(put_back):
        torch.testing.assert_close(probe.observe(tokens), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(probe.observe(tokens), expected, atol=0, rtol=0)


def test_changes_see_the_callers_layout(probes, tokens, kept):
    """Left padding: index 0 of the batch is not the first token, and stays out of the run."""
    probe = probes("llama")
    plain = type(kept)()
    probe.observe(tokens, None, plain)
    padded = torch.nn.functional.pad(tokens, (4, 0), value=3)
    documents = torch.nn.functional.pad(torch.zeros_like(tokens), (4, 0), value=-1)
    shapes = []

    def change(layer, h):
        shapes.append(tuple(h.shape))
        h = h.clone()
        h[:, 4] = 2.0
        return h

    with probe.intervene({"residual": change}):
        probe.observe(padded, documents, kept)
    assert set(shapes) == {(3, 25, 32)}
    assert kept.stream[1][:, 4].eq(2.0).all()
    assert kept.stream[EMBEDDING][:, 5:].equal(plain.stream[EMBEDDING][:, 1:])


def test_changes_nest_and_end_also_when_one_raises(probes, tokens):
    probe = probes("llama")
    hooks = [len(module._forward_hooks) for module in probe.model.modules()]
    expected = probe.observe(tokens)

    def fail(layer, v):
        raise RuntimeError("mine")

    with probe.intervene({"residual": lambda layer, h: h * 2}):
        twice = probe.observe(tokens)
        with probe.intervene({"values": fail}), pytest.raises(RuntimeError, match="mine"):
            probe.observe(tokens)
        assert torch.equal(probe.observe(tokens), twice)
    assert not torch.allclose(twice, expected)
    assert torch.equal(probe.observe(tokens), expected)
    assert [len(module._forward_hooks) for module in probe.model.modules()] == hooks


def test_impossible_changes_are_refused(probes, tokens):
    with (
        pytest.raises(ValueError, match=r"unknown change 'valuse'.*values"),
        probes("llama").intervene({"valuse": lambda layer, v: v}),
    ):
        pass
    with (
        pytest.raises(ValueError, match=r"llama \(llama\) has no gate"),
        probes("llama").intervene({"gate": lambda layer, g: g}),
    ):
        pass
    with (
        pytest.raises(ValueError, match="its values cannot be reached"),
        probes("bloom").intervene({"values": lambda layer, v: v}),
    ):
        pass
    probe = probes("llama")
    with (
        probe.intervene({"residual": lambda layer, h: h[:, :-1]}),
        pytest.raises(ValueError, match=r"'residual' in layer -1 made \(3, 21, 32\)"),
    ):
        probe.observe(tokens)
