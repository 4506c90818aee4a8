from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gatelm.config import ConfigError
from gatelm.hf.probe.families import (
    GATED,
    OWN_GATES_UNREAD,
    UNGATED,
    GateLayout,
    GateReader,
    HeadShape,
    gate_layout,
    gate_note,
)
from gatelm.hf.probe.hf_probe import HFProbe

SHAPE = HeadShape(num_heads=6, num_kv_heads=2, head_dim=4, value_dim=4)


def module_with(rows, name="q_proj"):
    module = nn.Module()
    module.add_module(name, nn.Linear(8, rows, bias=False))
    return module


def numbered(reader, layout):
    """Which output rows of the projection each head's scores come from."""
    rows = reader.projection.weight.shape[0]
    scores = reader.scores(torch.arange(float(rows))[None, None] / rows)
    act_inverse = torch.logit if layout.activation == "sigmoid" else lambda y: y.expm1().log()
    return (act_inverse(scores[0, 0].double()) * rows).round().long().tolist()


@pytest.mark.parametrize(
    ("packing", "granularity", "expected"),
    [
        # [4 queries | 4 gates] for each of 6 heads
        ("per_query_head", "element", [[8 * h + 4 + c for c in range(4)] for h in range(6)]),
        # two groups of [12 queries | 12 gates]
        (
            "per_kv_group",
            "element",
            [[24 * (h // 3) + 12 + 4 * (h % 3) + c for c in range(4)] for h in range(6)],
        ),
        # two groups of [12 queries | 3 gates]
        ("per_kv_group", "head", [[15 * (h // 3) + 12 + h % 3] for h in range(6)]),
    ],
)
def test_rows_of_packed_gates(packing, granularity, expected):
    layout = GateLayout("q_proj", packing=packing, granularity=granularity)
    rows = 6 * (4 + (4 if granularity == "element" else 1))
    reader = GateReader(layout, module_with(rows), SHAPE, "here")
    assert numbered(reader, layout) == expected


def test_the_two_packings_of_one_shape_differ():
    module = module_with(48)
    x = torch.randn(1, 3, 48, generator=torch.Generator().manual_seed(0))
    read = [
        GateReader(GateLayout("q_proj", packing=packing), module, SHAPE, "here").scores(x)
        for packing in ("per_query_head", "per_kv_group")
    ]
    assert read[0].shape == read[1].shape
    assert not torch.allclose(read[0], read[1])


def test_a_projection_of_another_height_is_refused():
    layout = GateLayout("q_proj", packing="per_query_head")
    with pytest.raises(ConfigError, match=r"layer 3: q_proj has 24 rows.*makes 48"):
        GateReader(layout, module_with(24), SHAPE, "layer 3")
    with pytest.raises(ConfigError, match="gate_proj, which is missing"):
        GateReader(GateLayout("gate_proj"), module_with(24), SHAPE, "layer 3")


@pytest.mark.parametrize("activation", ["sigmoid", "softplus"])
@pytest.mark.parametrize("packing", ["own", "per_query_head"])
def test_replaced_scores_come_out_of_the_activation(activation, packing):
    rows = 24 if packing == "own" else 48
    module = module_with(rows, "gate")
    module.extra = nn.Parameter(torch.randn(6, generator=torch.Generator().manual_seed(1)))
    layout = GateLayout("gate", packing=packing, activation=activation, bias="extra")
    reader = GateReader(layout, module, SHAPE, "here")
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, rows, generator=generator)
    wanted = torch.rand(2, 5, 6, 4, generator=generator)
    wanted[0, 0], wanted[0, 1] = 0.0, 1.0
    changed = reader.replaced(x, wanted)
    torch.testing.assert_close(reader.scores(changed), wanted, atol=1e-6, rtol=1e-5)
    if packing == "per_query_head":
        queries = changed.view(2, 5, 6, 8)[..., :4]
        assert torch.equal(queries, x.view(2, 5, 6, 8)[..., :4])
    torch.testing.assert_close(reader.replaced(x, reader.scores(x)), x, atol=1e-5, rtol=1e-4)


def test_scores_that_the_activation_cannot_give_are_refused():
    reader = GateReader(GateLayout("gate"), module_with(24, "gate"), SHAPE, "here")
    x = torch.zeros(1, 1, 24)
    with pytest.raises(ValueError, match=r"scores from 0 to 1, so a change to 0 \.\.\. 2"):
        reader.replaced(x, torch.tensor([0.0, 2.0] * 12).view(1, 1, 6, 4))
    softplus = GateLayout("gate", activation="softplus")
    reader = GateReader(softplus, module_with(24, "gate"), SHAPE, "here")
    reader.replaced(x, torch.full((1, 1, 6, 4), 2.0))
    with pytest.raises(ValueError, match="softplus gate gives scores from 0 to inf"):
        reader.replaced(x, torch.full((1, 1, 6, 4), -1.0))


def test_every_family_is_in_one_list_only():
    for a, b in ((GATED, UNGATED), (GATED, OWN_GATES_UNREAD), (UNGATED, OWN_GATES_UNREAD)):
        assert not set(a) & set(b)


def test_layouts_that_depend_on_the_config():
    def layout(kind, **settings):
        return gate_layout(SimpleNamespace(model_type=kind, **settings))

    assert layout("laguna", gating=True).granularity == "head"
    assert layout("laguna", gating="per-element").granularity == "element"
    assert layout("laguna", gating=True).activation == "softplus"
    assert layout("step3p5", gating="per-head").activation == "sigmoid"
    assert layout("lfm3", use_attention_gate=True).granularity == "head"
    assert layout("lfm3", use_attention_gate=False) is None
    both = layout("qwen3", headwise_attn_output_gate=True, elementwise_attn_output_gate=True)
    assert both.granularity == "head"
    assert layout("qwen3", elementwise_attn_output_gate=True).packing == "per_kv_group"
    assert layout("qwen3") is None


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        ("llama", None),
        ("afmoe", None),
        ("lfm3", None),
        ("qwen3_next", "linear-attention layers are not shown"),
        ("dory", "dory has gates that are not shown: its gate has a learned scale"),
        ("brand_new", "whether brand_new has gates is not known here"),
    ],
)
def test_what_is_not_known_about_gates_is_said(kind, note):
    found = gate_note(SimpleNamespace(model_type=kind, use_attention_gate=True))
    assert found is None if note is None else note in found


def by_hand(family, attention, x):
    """The gate as the family's own forward computes it, written from its definition."""
    if family in ("qwen3_next", "qwen3_5_text"):
        packed = F.linear(x, attention.q_proj.weight)
        heads = [packed[..., 16 * n + 8 : 16 * n + 16] for n in range(4)]
        return torch.stack(heads, dim=-2).sigmoid()
    if family in ("afmoe", "hrm_text"):
        return F.linear(x, attention.gate_proj.weight).view(*x.shape[:2], 4, 8).sigmoid()
    logits = F.linear(x, attention.g_proj.weight)[..., None]
    return F.softplus(logits) if family == "laguna" else logits.sigmoid()


FAMILIES = ("qwen3_next", "qwen3_5_text", "afmoe", "hrm_text", "laguna", "lfm3")


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_a_hook_and_explain_the_heads(family, probes, tokens, kept):
    probe = probes(family)
    inputs = []
    hooks = [
        module.register_forward_pre_hook(
            lambda module, args, kwargs: inputs.append((module, args, kwargs)), with_kwargs=True
        )
        for module in {layer.attention for layer in probe.layers if layer.attention is not None}
    ]
    probe.observe(tokens, None, kept)
    for hook in hooks:
        hook.remove()
    assert set(kept.gates) == set(probe.gate_sites) == set(probe.attention_layers)
    for layer, (module, args, kwargs) in zip(kept.gates, inputs, strict=True):
        x = args[0] if args else kwargs["hidden_states"]
        with torch.no_grad():
            expected = by_hand(family, module, x)
        torch.testing.assert_close(kept.gates[layer], expected, atol=1e-6, rtol=1e-5)
        product = kept.before[layer] * kept.gates[layer]
        torch.testing.assert_close(kept.after[layer], product, atol=1e-6, rtol=1e-5)
        assert not torch.allclose(kept.after[layer], kept.before[layer], atol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_weight_norms_are_those_of_the_gate_rows(family, probes):
    probe = probes(family)
    norms = probe.gate_weight_norms()
    for layer in probe.gate_sites:
        attention = probe.layers[layer].attention
        if family in ("qwen3_next", "qwen3_5_text"):
            rows = attention.q_proj.weight.view(4, 2, 8, -1)[:, 1]
        elif family in ("afmoe", "hrm_text"):
            rows = attention.gate_proj.weight
        else:
            rows = attention.g_proj.weight
        expected = rows.detach().double().reshape(4, -1).norm(dim=1)
        torch.testing.assert_close(norms[layer, "sdpa"], expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_gates_forced_open_and_shut(family, probes, tokens, kept):
    probe = probes(family)
    with probe.intervene({"gate": lambda layer, scores: torch.ones_like(scores)}):
        probe.observe(tokens, None, kept)
    for layer, before in kept.before.items():
        assert kept.gates[layer].eq(1).all()
        torch.testing.assert_close(kept.after[layer], before, atol=1e-6, rtol=1e-5)
    shut = type(kept)()
    with probe.intervene({"gate": lambda layer, scores: torch.zeros_like(scores)}):
        probe.observe(tokens, None, shut)
    for layer in probe.gate_sites:
        assert shut.branches[layer].abs().max() < 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gates_own_scores_put_back_change_nothing(family, probes, tokens):
    probe = probes(family)
    expected = probe.observe(tokens)
    with probe.intervene({"gate": lambda layer, scores: scores.clone()}):
        torch.testing.assert_close(probe.observe(tokens), expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(probe.observe(tokens), expected)


def test_one_layers_gates_can_be_changed_alone(probes, tokens, kept):
    probe = probes("afmoe")
    with probe.intervene({"gate": lambda layer, g: torch.ones_like(g) if layer == 1 else g}):
        probe.observe(tokens, None, kept)
    assert kept.gates[1].eq(1).all()
    assert not kept.gates[2].eq(1).any()


def test_a_gated_model_whose_weights_do_not_fit_is_refused(fresh):
    model = fresh("qwen3")
    model.config.elementwise_attn_output_gate = True
    with pytest.raises(ConfigError, match="layer 0: q_proj has 64 rows"):
        HFProbe(model)
