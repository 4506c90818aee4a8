import pytest
import torch
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from gatelm.analysis.probe.gatelm_probe import GatelmProbe
from gatelm.config import ConfigError
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.hf.probe.attention import implementation
from gatelm.hf.probe.hf_probe import HFProbe
from gatelm.hf.probe.prefill import HFPrefill, open_prefill, prefill_of
from gatelm.inference.prefill import DecoderPrefill, Prefill, continue_greedily, token_losses
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import export_model

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}
FAMILIES = {
    "llama": {},
    "mistral": {"sliding_window": 6},
    "qwen3": {"head_dim": 8},
    "gemma2": {
        "head_dim": 8,
        "sliding_window": 6,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {
        "head_dim": 8,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
    "gpt_oss": {
        "head_dim": 8,
        "sliding_window": 6,
        "num_local_experts": 2,
        "num_experts_per_tok": 2,
    },
    "qwen3_next": {
        "head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention", "full_attention"],
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16,
    },
}


def build(family, **settings):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZES, **settings})
    return HFProbe(AutoModelForCausalLM.from_config(config).eval(), family)


def text(num_tokens):
    return torch.randint(3, 64, (num_tokens,), generator=torch.Generator().manual_seed(1))


def whole(probe, tokens):
    """Losses of one forward of the library's own, which a longer text before would change.

    Eager: some versions' sdpa leaves out a cap on the scores.
    """
    with torch.no_grad(), implementation(probe.model, "eager"):
        probe.model(input_ids=tokens[None, :1], use_cache=False)
        logits = probe.model(input_ids=tokens[None, :-1], use_cache=False).logits[0]
    return F.cross_entropy(logits.float(), tokens[1:], reduction="none")


@pytest.mark.parametrize("chunk", [1, 5, 100])
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_give_the_losses_of_one_forward(family, chunk):
    probe, tokens = build(family, **FAMILIES[family]), text(23)
    reader = prefill_of(probe)
    assert isinstance(reader, HFPrefill)
    assert isinstance(reader, Prefill)
    before = probe.model.config._attn_implementation
    found = token_losses(reader, tokens, chunk_tokens=chunk)
    torch.testing.assert_close(found, whole(probe, tokens), atol=2e-4, rtol=2e-4)
    assert probe.model.config._attn_implementation == before


def test_full_attention_takes_the_kernel_made_for_chunks(monkeypatch):
    from gatelm.nn.attention.backends.tail import attend_tail

    calls = []
    monkeypatch.setattr(
        "gatelm.hf.probe.prefill.attend_tail", lambda *a: calls.append(a) or attend_tail(*a)
    )
    token_losses(prefill_of(build("llama")), text(23), chunk_tokens=5)
    assert len(calls) == 3 * 4  # every layer, every chunk but the first
    calls.clear()
    token_losses(prefill_of(build("mistral", sliding_window=6)), text(23), chunk_tokens=5)
    assert not calls


def test_positions_that_move_with_the_length_forget_longer_texts():
    settings = {"rope_parameters": DYNAMIC, "max_position_embeddings": 8}
    reader, short, long = prefill_of(build("llama", **settings)), text(12), text(30)
    assert reader.length_dependent
    first = token_losses(reader, short, chunk_tokens=4)
    torch.testing.assert_close(first, whole(build("llama", **settings), short))
    longer = token_losses(reader, long, chunk_tokens=4)
    torch.testing.assert_close(longer, whole(build("llama", **settings), long))
    torch.testing.assert_close(token_losses(reader, short, chunk_tokens=4), first)


def test_the_continuation_is_that_of_generate():
    probe, prompt = build("llama"), text(17)
    found = continue_greedily(prefill_of(probe), prompt, max_new_tokens=8, chunk_tokens=6)
    output = probe.model.generate(
        prompt[None], max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert found == output[0, 17:].tolist()


def test_a_gatelm_folder_opens_with_its_tokenizer_and_end(tmp_path):
    tree = {
        "vocab_size": 258,
        "hidden_dim": 16,
        "num_layers": 1,
        "layer": {"mixer": {"num_heads": 2}, "ffn": {"ffn_dim": 24}},
    }
    model = Decoder(ModelConfig.parse(tree))
    init_weights(model, 0)
    export_model(tmp_path / "model", model, byte_tokenizer(), {}, context_tokens=16)
    reader, tokenizer, ends = open_prefill(tmp_path / "model", device="cpu")
    assert isinstance(reader, DecoderPrefill)
    assert tokenizer.decode(tokenizer.encode("abc")) == "abc"
    assert ends == {257}
    assert isinstance(prefill_of(GatelmProbe(model)), DecoderPrefill)


def test_what_cannot_read_in_chunks_says_so():
    class Other:
        name = "other"

    with pytest.raises(ConfigError, match="other: it cannot read a text in chunks"):
        prefill_of(Other())
