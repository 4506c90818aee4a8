import pytest
import torch

from gatelm.config import ConfigError
from gatelm.hf.modeling.lora import lora_targets
from gatelm.hf.modeling.wrapper import GatelmForCausalLM
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from helpers import random_ids

# PEFT asks for it by its old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

GATES = {
    "head": {"site": "sdpa", "granularity": "head"},
    "element": {"site": "sdpa"},
    "low-rank": {"site": "sdpa", "rank": 3},
    "per-head-input": {"site": "sdpa", "inputs": ["y", "x"]},
    "ffn": {"site": "ffn"},
}


def build(gate="element", **changes):
    mixer = {"num_heads": 4, "num_kv_heads": 2}
    layer = {"mixer": mixer, "ffn": {"ffn_dim": 24}, "gates": [GATES[gate]] if gate else []}
    tree = {"vocab_size": 41, "hidden_dim": 32, "num_layers": 2, "init": {"std": 0.3}, **changes}
    decoder = Decoder(ModelConfig.parse({**tree, "layer": layer}))
    init_weights(decoder, 0)
    return GatelmForCausalLM.from_decoder(decoder).eval()


@pytest.fixture
def tokens():
    return random_ids(41, 2, 11, seed=0)


def test_the_targets_are_every_matrix_of_the_layers():
    model = build("low-rank", head="untied")
    targets = lora_targets(model)
    named = {f"{name}.weight" for name in targets["target_modules"]}
    named |= set(targets["target_parameters"])
    matrices = {n for n, p in model.named_parameters() if p.dim() == 2 and ".layers." in n}
    assert named == matrices
    gates = lora_targets(model, ["gates"])
    assert gates["target_modules"] == []
    assert all(".gates.sdpa." in name for name in gates["target_parameters"])
    assert "target_parameters" not in lora_targets(model, ["ffn"])


def test_mistakes_are_one_sentence():
    with pytest.raises(ConfigError, match="did you mean 'gates'"):
        lora_targets(build(), ["gate"])
    with pytest.raises(ConfigError, match="has no projection in gates"):
        lora_targets(build(None), ["gates"])


@pytest.mark.parametrize("gate", GATES)
def test_an_adapter_trains_saves_and_merges(gate, tokens, tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, task_type="CAUSAL_LM", **lora_targets(build(gate)))
    before = build(gate)(tokens).logits
    model = peft.get_peft_model(build(gate), config)
    torch.testing.assert_close(model(tokens).logits, before)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert all("lora_" in name for name in trained)
    gates = [p for n, p in trained.items() if ".gates." in n and "lora_B" in n]
    assert len(gates) == 2 * {"low-rank": 2, "per-head-input": 2}.get(gate, 1)
    model(tokens, labels=tokens).loss.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in gates)
    with torch.no_grad():
        for parameter in trained.values():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    after = model.eval()(tokens).logits.detach()
    assert (after - before).abs().max() > 0.01
    model.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(build(gate), tmp_path).eval()
    torch.testing.assert_close(again(tokens).logits, after)
    merged = again.merge_and_unload()
    assert type(merged) is GatelmForCausalLM
    assert set(merged.state_dict()) == set(build(gate).state_dict())
    torch.testing.assert_close(merged(tokens).logits, after, rtol=1e-4, atol=1e-4)


def test_an_adapted_model_generates_with_its_cache(tokens):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=2, task_type="CAUSAL_LM", init_lora_weights=False, **lora_targets(build("head"))
    )
    torch.manual_seed(0)
    model = peft.get_peft_model(build("head"), config).eval()
    settings = {
        "attention_mask": torch.ones_like(tokens),
        "do_sample": False,
        "max_new_tokens": 6,
        "pad_token_id": 0,
    }
    cached = model.generate(input_ids=tokens, **settings)
    assert torch.equal(cached, model.generate(input_ids=tokens, use_cache=False, **settings))


def test_all_linear_leaves_the_gates_alone(tokens):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, task_type="CAUSAL_LM", target_modules="all-linear")
    model = peft.get_peft_model(build(), config)
    assert not [n for n, p in model.named_parameters() if p.requires_grad and ".gates." in n]
