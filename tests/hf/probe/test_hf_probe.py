from functools import partial

import pytest
import torch
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from gatelm.analysis.probe.protocol import EMBEDDING, Probe
from gatelm.analysis.statistics.streaming import attention_rows, rows_of_weights
from gatelm.config import ConfigError
from gatelm.hf.probe.attention import NAME, implementation
from gatelm.hf.probe.hf_probe import HFProbe
from gatelm.hf.probe.structure import learned_positions
from gatelm.nn.attention.masks import AttentionMask
from gatelm.testing.statistics import naive_weights

BY_CALL = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gpt_neox",
    "opt",
    "phi3",
    "granite",
    "cohere",
    "gpt_oss",
    "deepseek_v3",
    "qwen3_next",
    "qwen3_5_text",
    "afmoe",
    "laguna",
    "lfm3",
    "hrm_text",
)
BY_MATRIX = ("falcon", "bloom", "mpt")
HYBRIDS = ("qwen3_next", "qwen3_5_text")
LOOPED = ("hrm_text",)
EVERY = (*BY_CALL, *BY_MATRIX)


def close(actual, expected, atol=2e-5, rtol=2e-4):
    torch.testing.assert_close(actual, expected, atol=atol, rtol=rtol)


def eager(model, tokens, **settings):
    """The library's own eager forward."""
    with torch.no_grad(), implementation(model, "eager"):
        return model(tokens, use_cache=False, **settings)


def by_layer(family, attentions):
    """The library's tuple of matrices by layer: hybrids leave out the layers without one."""
    offset = 1 if family in HYBRIDS else 0
    return {index + offset: matrix for index, matrix in enumerate(attentions)}


def statistics(rows):
    names = ("first_weight", "entropy", "entropy_without_first", "max_weight", "importance")
    return {name: getattr(rows, name) for name in names}


@pytest.mark.parametrize("family", BY_CALL)
def test_calls_give_the_weights_and_statistics_of_the_eager_matrices(
    family, models, probes, tokens, kept
):
    probe = probes(family)
    assert probe.implementation == NAME
    probe.observe(tokens, None, kept)
    expected = by_layer(family, eager(models(family), tokens, output_attentions=True).attentions)
    assert set(kept.calls) == set(expected) == set(probe.attention_layers)
    for layer, matrix in expected.items():
        call = kept.calls[layer]
        settings = {
            "scale": call.scale,
            "window_tokens": call.window_tokens,
            "softcap": call.softcap,
            "sink_logits": call.sink_logits,
        }
        close(naive_weights(call.q, call.k, call.mask, **settings)[1], matrix)
        rows = statistics(attention_rows(call.q, call.k, call.mask, **settings))
        seen_by = rows_of_weights(matrix, call.mask)
        for name, value in statistics(seen_by).items():
            if name == "importance" and call.window_tokens is not None:
                continue  # the matrix does not say which keys the window hides
            close(rows[name], value)


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gemma3_text", "gpt_oss", "afmoe"])
def test_windows_are_read_off_the_mask(family, probes, models, tokens, kept):
    kinds = models(family).config.layer_types if family != "mistral" else ["sliding_attention"] * 3
    probes(family).observe(tokens, None, kept)
    found = [kept.calls[layer].window_tokens for layer in range(3)]
    assert found == [7 if kind == "sliding_attention" else None for kind in kinds]
    assert 7 in found


@pytest.mark.parametrize("family", BY_MATRIX)
def test_eager_matrices_are_shown_where_calls_are_not_seen(family, models, probes, tokens, kept):
    probe = probes(family)
    assert probe.implementation == "eager"
    probe.observe(tokens, None, kept)
    expected = by_layer(family, eager(models(family), tokens, output_attentions=True).attentions)
    assert not kept.calls
    assert set(kept.matrices) == set(expected) == set(probe.attention_layers) == {0, 1, 2}
    for layer, matrix in expected.items():
        close(kept.matrices[layer][0], matrix, atol=0, rtol=0)


@pytest.mark.parametrize("family", EVERY)
def test_hidden_states_and_logits_are_the_models_own(family, models, probes, tokens):
    probe = probes(family)
    assert isinstance(probe, Probe)
    hidden = probe.observe(tokens)
    close(probe.logits(hidden), eager(models(family), tokens).logits)
    close(probe.logits(hidden[1, 3:7]), eager(models(family), tokens).logits[1, 3:7])
    assert not hidden.requires_grad


@pytest.mark.parametrize("family", [f for f in EVERY if f not in LOOPED])
def test_residual_stream_is_before_any_final_norm(family, models, probes, tokens, kept):
    probes(family).observe(tokens, None, kept)
    states = eager(models(family), tokens, output_hidden_states=True).hidden_states
    assert sorted(kept.stream) == [EMBEDDING, *range(probes(family).num_layers)]
    for index, expected in enumerate(states[:-1]):
        close(kept.stream[index - 1], expected)
    last = kept.stream[probes(family).num_layers - 1]
    assert not torch.allclose(last, states[-1], atol=1e-3)


@pytest.mark.parametrize("family", [f for f in EVERY if f not in LOOPED])
def test_branch_is_what_enters_the_residual_or_its_norm(family, models, probes, tokens, kept):
    """Heads' outputs times W_o give the branch."""
    probe = probes(family)
    probe.observe(tokens, None, kept)
    assert set(kept.branches) == set(kept.after) == set(probe.attention_layers)
    for layer, after in kept.after.items():
        projection = next(
            module
            for name, module in probe.layers[layer].attention.named_modules()
            if name in ("o_proj", "out_proj", "c_proj", "dense")
        )
        with torch.no_grad():
            close(projection(after.flatten(-2)), kept.branches[layer])


@pytest.mark.parametrize("family", BY_CALL)
def test_heads_before_the_gate_are_weights_times_values(family, probes, tokens, kept):
    probes(family).observe(tokens, None, kept)
    for layer, call in kept.calls.items():
        weights = naive_weights(
            call.q,
            call.k,
            call.mask,
            scale=call.scale,
            window_tokens=call.window_tokens,
            softcap=call.softcap,
            sink_logits=call.sink_logits,
        )[1]
        values = call.v.repeat_interleave(call.q.shape[2] // call.v.shape[2], dim=2)
        close(torch.einsum("bnts,bsnv->btnv", weights, values), kept.before[layer])


def between_padding(tokens, left, right):
    documents = torch.nn.functional.pad(torch.zeros_like(tokens), (left, right), value=-1)
    return torch.nn.functional.pad(tokens, (left, right), value=3), documents


@pytest.mark.parametrize(("left", "right"), [(5, 0), (0, 5), (2, 3)])
@pytest.mark.parametrize("family", EVERY)
def test_padding_on_either_side_changes_nothing(family, left, right, probes, tokens, kept):
    probe, plain = probes(family), type(kept)()
    expected = probe.observe(tokens, None, plain)
    hidden = probe.observe(*between_padding(tokens, left, right), kept)
    here = slice(left, left + tokens.shape[1])
    close(hidden[:, here], expected)
    assert hidden[:, :left].eq(0).all()
    for shown in ("stream", "gates", "before", "after", "branches"):
        for layer, value in getattr(plain, shown).items():
            close(getattr(kept, shown)[layer][:, here], value)
    for layer, call in plain.calls.items():
        for name in "qkv":
            close(getattr(kept.calls[layer], name)[:, here], getattr(call, name))
        assert kept.calls[layer].window_tokens == call.window_tokens
    for layer, (matrix, _) in plain.matrices.items():
        close(kept.matrices[layer][0][:, :, here, here], matrix)
        assert kept.matrices[layer][0].sum() == pytest.approx(float(matrix.sum()), rel=1e-5)


@pytest.mark.parametrize("family", EVERY)
def test_packed_documents_are_each_as_if_alone(family, probes, tokens, kept):
    """A row of 4 and 17 tokens, one of 9, 8 and 4 of padding, one whole."""
    lengths = [(4, 17), (9, 8), (21,)]
    documents = torch.full_like(tokens, -1)
    for row, parts in enumerate(lengths):
        start = 0
        for number, length in enumerate(parts):
            documents[row, start : start + length] = number
            start += length
    probe = probes(family)
    hidden = probe.observe(tokens, documents, kept)
    for row, parts in enumerate(lengths):
        start = 0
        for length in parts:
            here = slice(start, start + length)
            alone = type(kept)()
            close(hidden[row, here], probe.observe(tokens[row : row + 1, here], None, alone)[0])
            for layer, (matrix, _) in alone.matrices.items():
                close(kept.matrices[layer][0][row, :, here, here], matrix[0])
            for layer, call in alone.calls.items():
                close(kept.calls[layer].k[row, here], call.k[0])
            start += length


def test_a_mask_of_the_call_is_that_of_the_documents(probes, tokens, kept):
    padded, documents = between_padding(tokens, 3, 0)
    probes("llama").observe(padded, documents, kept)
    mask = kept.calls[0].mask
    assert isinstance(mask, AttentionMask)
    assert torch.equal(mask.documents, documents)


def test_only_padding_is_refused(probes, tokens):
    with pytest.raises(ValueError, match="nothing but padding"):
        probes("llama").observe(tokens, torch.full_like(tokens, -1))


def test_a_chunked_mask_makes_a_layer_unread_only_when_it_shows(fresh, tokens, kept):
    """Llama 4's chunks are no window: up to their length they are plain causal attention."""
    settings = {"attention_chunk_size": 15, "num_local_experts": 2, "intermediate_size_mlp": 48}
    model = fresh("llama4_text", head_dim=8, **settings)
    probe = HFProbe(model)
    probe.observe(tokens[:, :15], None, kept)
    assert set(kept.calls) == {0, 1, 2}
    longer = type(kept)()
    probe.observe(tokens, None, longer)
    chunked = {i for i, kind in enumerate(model.config.layer_types) if kind == "chunked_attention"}
    assert chunked
    assert set(probe.unread) == chunked
    assert set(longer.calls) == set(range(3)) - chunked
    assert "neither causal nor a sliding window" in probe.unread[min(chunked)]


def test_an_added_bias_is_not_shown_as_plain_attention(fresh, kept, tokens, monkeypatch):
    """A family that adds to the scores through the mask, as ALiBi does."""
    model = fresh("llama")
    own = type(model.model.layers[1].self_attn).forward

    def with_bias(self, hidden_states, position_embeddings, attention_mask=None, **kwargs):
        if self.layer_idx == 1:
            t = hidden_states.shape[1]
            hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
            bias = torch.arange(t, dtype=torch.float32).expand(t, t)
            attention_mask = bias.masked_fill(hidden, -1e9)[None, None]
        return own(self, hidden_states, position_embeddings, attention_mask, **kwargs)

    monkeypatch.setattr(type(model.model.layers[1].self_attn), "forward", with_bias)
    probe = HFProbe(model)
    probe.observe(tokens, None, kept)
    assert set(kept.calls) == {0, 2} == set(probe.attention_layers)
    assert probe.unread == {1: "a bias is added to its scores"}


def test_an_attention_function_that_is_wrong_for_a_family_is_not_trusted(fresh, tokens, kept):
    """A family whose eager code does more than its call says is read from its matrices."""
    from transformers.models.llama import modeling_llama

    model = fresh("llama")
    plain = modeling_llama.eager_attention_forward

    def scaled(module, query, key, value, mask, scaling, **kwargs):
        return plain(module, query * 2.0, key, value, mask, scaling, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modeling_llama, "eager_attention_forward", scaled)
        probe = HFProbe(model)
        assert probe.implementation == "eager"
        probe.observe(tokens, None, kept)
    assert not kept.calls
    assert set(kept.matrices) == {0, 1, 2}


def test_tensors_of_unknown_meaning_beside_the_call_are_not_ignored(fresh, tokens, kept):
    """As in sparse attention, where indices say which keys are seen; a plain kernel would drop
    them, and on a short text nobody would notice."""
    model = fresh("llama")
    for layer in model.model.layers:
        own = layer.self_attn.forward
        layer.self_attn.forward = partial(own, indices=torch.arange(3))
    probe = HFProbe(model)
    assert probe.implementation == "eager"
    probe.observe(tokens, None, kept)
    assert set(kept.matrices) == {0, 1, 2}


def test_the_text_part_of_a_multimodal_model_is_read(fresh, models, tokens, kept):
    """Vision layers do not run, so they are no layers of the language model."""
    text = models("gemma3_text")
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    sizes = {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    config = Gemma3Config(
        text_config=text.config.to_dict(),
        vision_config={**vision, **sizes},
        mm_tokens_per_image=1,
    )
    model = Gemma3ForConditionalGeneration(config).eval()
    model.model.language_model.load_state_dict(text.model.state_dict())
    probe = HFProbe(model)
    assert (probe.family, probe.num_layers, probe.unread) == ("gemma3_text", 3, {})
    close(probe.observe(tokens, None, kept), eager(text.model, tokens).last_hidden_state)
    assert set(kept.calls) == {0, 1, 2}


def test_hybrid_layers_say_why_they_are_unread(probes):
    for family in HYBRIDS:
        assert set(probes(family).unread) == {0}
        assert "linear_attention" in probes(family).unread[0]
        assert probes(family).attention_layers == (1, 2)


def test_a_looped_model_shows_every_pass(probes, tokens, kept):
    """Two cycles of one low and one high pass over stacks of one layer."""
    probe = probes("hrm_text")
    assert probe.num_layers == 4
    probe.observe(tokens, None, kept)
    assert list(kept.calls) == [0, 1, 2, 3]
    assert not torch.equal(kept.calls[0].q, kept.calls[2].q)


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_the_model_is_left_as_it_was(family, fresh, tokens, kept):
    model = fresh(family)
    model.train()
    before = model.config._attn_implementation
    state = {name: value.clone() for name, value in model.state_dict().items()}
    HFProbe(model).observe(tokens, None, kept)
    assert model.training
    assert all(module.training for module in model.modules())
    assert model.config._attn_implementation == before
    assert all(not module._forward_hooks for module in model.modules())
    assert all(not module._forward_pre_hooks for module in model.modules())
    assert all("forward" not in vars(module) for module in model.modules())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_facts_about_the_model(probes, models):
    probe = probes("qwen3_next")
    assert (probe.name, probe.family) == ("qwen3_next", "qwen3_next")
    assert probe.vocab_size == 97
    assert probe.dtype == torch.float32
    assert probe.device == torch.device("cpu")
    assert probe.parameters == sum(p.numel() for p in models("qwen3_next").parameters())


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss", "qwen3_next", "afmoe"])
def test_half_precision_models_are_read_by_their_calls(family, fresh, tokens, kept):
    model = fresh(family).bfloat16()
    probe = HFProbe(model)
    assert probe.implementation == NAME
    probe.observe(tokens, None, kept)
    assert kept.calls[1].q.dtype == torch.bfloat16


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_a_text_longer_than_the_learned_positions_is_refused(fresh, family):
    model = fresh(family)
    limit = model.config.max_position_embeddings
    assert learned_positions(model) == limit
    probe = HFProbe(model)
    assert probe.observe(torch.ones(1, limit, dtype=torch.long)).shape[1] == limit
    with pytest.raises(ConfigError, match=f"{limit + 1} tokens, but .* has learned {limit} pos"):
        probe.observe(torch.ones(1, limit + 1, dtype=torch.long))
    assert learned_positions(fresh("llama")) is None
