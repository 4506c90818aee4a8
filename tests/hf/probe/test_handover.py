import math

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

from gatelm.analysis.probe.gatelm_probe import GatelmProbe
from gatelm.analysis.probe.handover import DecoderHandover
from gatelm.hf.probe.attention import implementation
from gatelm.hf.probe.handover import hand_over
from gatelm.hf.probe.hf_probe import HFProbe
from gatelm.inference.streaming import compare_first_tokens, streaming_losses
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig

VOCAB = 64
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ROTARY = {
    "llama": {},
    "mistral": {"sliding_window": 6},
    "qwen3": {"head_dim": 8},
    "phi3": {},
    "gemma2": {"head_dim": 8, "sliding_window": 6, "attn_logit_softcapping": 2.0},
    "gemma3_text": {"head_dim": 8, "sliding_window": 6},
    "gpt_neox": {},
    "glm": {"head_dim": 8},
    "cohere": {},
    "gpt_oss": {
        "head_dim": 8,
        "sliding_window": 6,
        "num_local_experts": 2,
        "num_experts_per_tok": 2,
    },
    "afmoe": {
        "head_dim": 8,
        "sliding_window": 6,
        "num_dense_layers": 3,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 16,
    },
    "smollm3": {"no_rope_layers": [1, 0, 1]},
}


def build(family, num_layers, **settings):
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZES, "num_hidden_layers": num_layers, **settings})
    return HFProbe(AutoModelForCausalLM.from_config(config).eval(), family)


def text(num_tokens=30):
    return torch.randint(3, VOCAB, (num_tokens,), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", ROTARY)
@pytest.mark.parametrize(("first_tokens", "window_tokens"), [(0, 8), (3, 5)])
def test_one_layer_sees_what_it_would_see_in_the_cached_tokens_alone(
    family, first_tokens, window_tokens
):
    """The model's ordinary forward over the tokens in the cache, at their positions there.

    Eager: some versions' sdpa leaves out a cap on the scores.
    """
    settings = {k: v[:1] if isinstance(v, list) else v for k, v in ROTARY[family].items()}
    probe, tokens = build(family, 1, **settings), text()
    losses = streaming_losses(
        hand_over(probe),
        tokens,
        first_tokens=first_tokens,
        window_tokens=window_tokens,
        chunk_tokens=7,
    )
    for i in range(29):
        cached = {*range(min(first_tokens, i + 1)), *range(max(0, i + 1 - window_tokens), i + 1)}
        with torch.no_grad(), implementation(probe.model, "eager"):
            logits = probe.model(input_ids=tokens[None, sorted(cached)]).logits[0, -1]
        expected = F.cross_entropy(logits.float(), tokens[i + 1])
        torch.testing.assert_close(losses[i], expected, rtol=1e-4, atol=1e-4, msg=f"token {i}")


@pytest.mark.parametrize("family", ROTARY)
def test_deep_models_equal_a_dense_run_that_places_each_token_twice(family):
    """The model's own rotation: row 0 stands in the text, row 1 in the cache."""
    probe, tokens = build(family, 3, **ROTARY[family]), text()
    first_tokens, window_tokens = 3, 8
    handover, index = hand_over(probe), torch.arange(29)
    in_cache = index.clamp(max=first_tokens + window_tokens - 1)
    distance = index[:, None] - index

    def kernel(call):
        own = call.window_tokens or 1000
        near = (distance >= 0) & (distance < min(window_tokens, own))
        first = (distance >= window_tokens) & (index < first_tokens)
        first &= in_cache[:, None] - index < own
        group = call.q.shape[2] // call.k.shape[2]
        k, v = (t.repeat_interleave(group, 2) for t in (call.k, call.v))
        scores = torch.einsum("btnh,bsnh->bnts", call.q, k) * call.scale
        if call.softcap:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        chosen = torch.where(near, scores[0], torch.where(first, scores[1], -math.inf))
        if call.sink_logits is not None:
            chosen = torch.cat((chosen, call.sink_logits[:, None, None].expand(-1, 29, 1)), -1)
        heads = torch.einsum("nts,snh->tnh", chosen.softmax(-1)[..., :29], v[0])
        return torch.stack((heads, heads)), torch.zeros(2, 29, heads.shape[1])

    rows = tokens[:-1].expand(2, -1)
    hidden = handover.hidden(rows, torch.stack((index, in_cache)), kernel)[0]
    expected = F.cross_entropy(handover.logits(hidden), tokens[1:], reduction="none").float()
    losses = streaming_losses(
        handover, tokens, first_tokens=first_tokens, window_tokens=window_tokens, chunk_tokens=5
    )
    torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("gpt2", {}, "values in layer 0 of gpt2 change with position"),
        ("opt", {"word_embed_proj_dim": 32}, "values in layer 0 of opt change with position"),
        ("bloom", {}, "have no softmax attention that can be handed over"),
        (
            "qwen3_next",
            {
                "head_dim": 8,
                "num_experts": 2,
                "num_experts_per_tok": 1,
                "moe_intermediate_size": 16,
                "shared_expert_intermediate_size": 16,
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 2,
                "linear_key_head_dim": 8,
                "linear_value_head_dim": 8,
            },
            "has layers of type linear_attention, whose state a window cache does not hold",
        ),
        (
            "llama",
            {
                "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
                "max_position_embeddings": 8,
            },
            "If its positions change with length, a smaller window may do",
        ),
    ],
)
def test_models_that_cannot_stream_say_so(family, settings, message):
    probe = build(family, 4, **settings)
    with pytest.raises(ValueError, match=message):
        streaming_losses(hand_over(probe), text(), first_tokens=2, window_tokens=16)


def test_a_window_that_is_not_shown_is_no_window_that_is_ignored():
    handover = hand_over(build("mistral", 1, sliding_window=None))
    handover._kinds = ["sliding_attention"]
    with pytest.raises(ValueError, match="layer 0 of mistral has a window that it does not show"):
        streaming_losses(handover, text(), first_tokens=2, window_tokens=16)


def test_attention_in_chunks_is_refused():
    probe = build("llama", 1)
    probe.model.config.layer_types = ["chunked_attention"]
    with pytest.raises(ValueError, match="llama attends in chunks"):
        hand_over(probe)


def test_layers_with_a_state_are_refused():
    probe = build("llama", 1)
    probe.model.config.layer_types = ["linear_attention"]
    with pytest.raises(ValueError, match="llama has layers of type linear_attention"):
        hand_over(probe)


def test_scaled_rotations_are_read_off_the_model():
    rope = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
    rope["original_max_position_embeddings"] = 16
    probe, tokens = build("llama", 2, rope_parameters=rope, max_position_embeddings=64), text()
    losses = streaming_losses(hand_over(probe), tokens, first_tokens=4, window_tokens=60)
    with torch.no_grad():
        logits = probe.model(input_ids=tokens[None, :-1]).logits[0]
    expected = F.cross_entropy(logits, tokens[1:], reduction="none")
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-4)


def test_the_table_of_a_model_of_transformers():
    probe = build("llama", 2)
    table = compare_first_tokens(
        hand_over(probe), text(60), window_tokens=12, counts=(0, 2), reference=probe
    )
    assert [row.first_tokens for row in table.rows] == [0, 2]
    assert table.reference_loss is not None
    assert probe.model.config._attn_implementation != "gatelm_handover"


def test_a_model_of_this_package_is_handed_over_too():
    tree = {
        "vocab_size": 32,
        "hidden_dim": 32,
        "num_layers": 1,
        "layer": {"mixer": {"num_heads": 4}, "ffn": {"ffn_dim": 48}},
    }
    model = Decoder(ModelConfig.parse(tree, "model"))
    init_weights(model, 0)
    assert isinstance(hand_over(GatelmProbe(model)), DecoderHandover)
