"""Interventions on models of transformers, against the models' own weights changed by hand."""

import copy
from dataclasses import dataclass, field

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from gatelm.analysis.causal import interventions
from gatelm.hf.probe.hf_probe import HFProbe

VOCAB = 64


@dataclass(frozen=True)
class Rows:
    tokens: torch.Tensor
    targets: torch.Tensor
    documents: torch.Tensor | None = None
    marks: dict[str, torch.Tensor] = field(default_factory=dict)


def rows():
    ids = torch.randint(3, VOCAB, (2, 21), generator=torch.Generator().manual_seed(0))
    return Rows(ids[:, :-1].clone(), ids[:, 1:].clone())


def build(family, **settings):
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family,
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.3,
        pad_token_id=0,
        **settings,
    )
    return AutoModelForCausalLM.from_config(config).eval()


def afmoe():
    return build("afmoe", num_dense_layers=2, num_experts=2, num_experts_per_tok=1)


@torch.no_grad()
def loss_of(model):
    batch = rows()
    logits = model(input_ids=batch.tokens).logits
    return float(F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()))


def effects_of(model):
    return {e.name: e for e in interventions(HFProbe(model, "m"), [rows()], constants=(0.5,))}


def test_shut_gates_are_an_attention_that_gives_nothing():
    model = afmoe()
    effects, changed = effects_of(model), copy.deepcopy(model)
    for layer in changed.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    assert effects["gate_shut"].loss == pytest.approx(loss_of(changed), rel=1e-5)
    assert effects["none"].loss == pytest.approx(loss_of(model), rel=1e-5)


def test_a_constant_gate_is_a_projection_that_reads_nothing():
    model = afmoe()
    effects, changed = effects_of(model), copy.deepcopy(model)
    for layer in changed.model.layers:
        torch.nn.init.zeros_(layer.self_attn.gate_proj.weight)
    assert effects["gate_constant_0.5"].loss == pytest.approx(loss_of(changed), rel=1e-5)


def test_first_values_are_zeroed():
    model = build("llama")
    effects = effects_of(model)

    def zero(module, args, output):
        output = output.clone()
        output[:, 0] = 0
        return output

    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_hook(zero)
    assert effects["values_zero_0"].loss == pytest.approx(loss_of(model), rel=1e-5)
    assert "gate_open" not in effects


def test_an_eager_family_skips_what_it_cannot_do():
    config = AutoConfig.for_model("bloom", vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4)
    effects = effects_of(AutoModelForCausalLM.from_config(config).eval())
    assert "its values cannot be reached" in effects["values_zero_0"].skipped
    assert effects["none"].skipped is None
