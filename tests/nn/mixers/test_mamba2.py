"""Mamba-2 against its naive twin, forward and gradients, and against transformers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import Mamba2Config as LibraryConfig
from transformers import Mamba2ForCausalLM

from gatelm.config import ConfigError
from gatelm.nn.block import LayerConfig
from gatelm.nn.cache import KVCache
from gatelm.nn.check import check_layer
from gatelm.nn.init import init_weights
from gatelm.nn.mixers.mamba2 import Mamba2
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.testing.linear import reference_mixer

D = 12


def layer(gates: list, **mixer: object) -> LayerConfig:
    tree = {"mixer": {"kind": "mamba2", "num_heads": 4, "state_dim": 5, **mixer}}
    cfg = LayerConfig.parse({**tree, "ffn": {"ffn_dim": 8}, "gates": gates})
    check_layer(cfg, D, 0)
    return cfg


CASES = {
    "plain": layer([]),
    "published": layer(["sdpa-silu-gate"], num_groups=2),
    "no norm": layer(["sdpa-element"], out_norm=None, conv_tokens=1, bias="none", head_dim=3),
    "zero-centred": layer(
        ["sdpa-head", {"site": "v", "sharing": "per_kv_group"}],
        out_norm={"weight": "zero_centred"},
        num_groups=2,
    ),
    "all sites": layer(
        [
            {"site": "q", "inputs": ["resid"]},
            {"site": "k", "granularity": "head"},
            "value",
            {"site": "sdpa", "inputs": ["y", "q"]},
            {"site": "out", "inputs": ["y"], "rank": 2},
        ],
        num_groups=4,
        conv_tokens=3,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("with_documents", [False, True])
def test_mixer_equals_the_naive_twin(
    name: str, with_documents: bool, assert_equals_twin: Callable[..., None]
) -> None:
    assert_equals_twin(CASES[name], D, reference_mixer, with_documents)


LIBRARY = LibraryConfig(
    hidden_size=16,
    num_heads=8,
    head_dim=4,
    state_size=6,
    n_groups=2,
    num_hidden_layers=2,
    vocab_size=31,
    chunk_size=8,
    tie_word_embeddings=False,
    eos_token_id=None,
)
OURS = ModelConfig.parse(
    {
        "vocab_size": 31,
        "hidden_dim": 16,
        "num_layers": 2,
        "head": "untied",
        "final_norm": {"eps": 1e-5},
        "layer": {
            "mixer": {"kind": "mamba2", "num_heads": 8, "state_dim": 6, "num_groups": 2},
            "ffn": {"kind": "none"},
            "norm": {"eps": 1e-5},
            "gates": ["sdpa-silu-gate"],
        },
    }
)


def library_state(theirs: Mamba2ForCausalLM) -> dict[str, torch.Tensor]:
    """The library's weights by our names; its one matrix holds gate, x, B, C and step in a row."""
    out = {
        "embedding.weight": theirs.backbone.embeddings.weight,
        "final_norm.weight": theirs.backbone.norm_f.weight,
        "head.weight": theirs.lm_head.weight,
    }
    for index, block in enumerate(theirs.backbone.layers):
        mixer = block.mixer
        sizes = (32, 32, 12, 12, 8)
        gate, v, k, q, step = mixer.in_proj.weight.split(sizes)
        own = {
            "attn_norm.weight": block.norm.weight,
            "attn.q_proj.weight": q,
            "attn.k_proj.weight": k,
            "attn.v_proj.weight": v,
            "attn.step_proj.weight": step,
            "attn.conv.weight": mixer.conv1d.weight.squeeze(1),
            "attn.conv.bias": mixer.conv1d.bias,
            "attn.dt_bias": mixer.dt_bias,
            "attn.A_log": mixer.A_log,
            "attn.skip": mixer.D,
            "attn.out_norm.weight": mixer.norm.weight,
            "attn.o_proj.weight": mixer.out_proj.weight,
            "attn.gates.sdpa.proj.x.weight": gate,
        }
        out |= {f"layers.{index}.{name}": tensor for name, tensor in own.items()}
    return {name: tensor.detach() for name, tensor in out.items()}


@torch.no_grad()
def test_whole_model_equals_transformers() -> None:
    torch.manual_seed(0)
    theirs = Mamba2ForCausalLM(LIBRARY).eval()
    for name, parameter in theirs.named_parameters():
        if not name.endswith(("A_log", "dt_bias")):
            parameter.normal_(0, 0.4)
    ours = Decoder(OURS).eval()
    ours.load_state_dict(library_state(theirs))
    ids = torch.randint(0, 31, (2, 77), generator=torch.Generator().manual_seed(1))
    expected = theirs(ids).logits
    torch.testing.assert_close(ours(ids), expected, atol=1e-5, rtol=1e-5)

    generated = theirs.generate(ids[:, :9], max_new_tokens=12, do_sample=False, pad_token_id=0)
    cache, text = KVCache(), ids[:, :9]
    logits = ours(text, cache=cache)
    for _ in range(12):
        text = torch.cat((text, logits[:, -1].argmax(-1, keepdim=True)), dim=1)
        logits = ours(text[:, -1:], cache=cache)
    assert text.tolist() == generated.tolist()


def test_start_of_the_parameters() -> None:
    model = Decoder(OURS)
    init_weights(model, 3)
    mixer = model.layers[0].attn
    assert isinstance(mixer, Mamba2)
    assert bool((mixer.skip == 1).all())
    assert bool((mixer.A_log.exp() >= 1).all())
    assert mixer.out_norm.weight is not None
    assert bool((mixer.out_norm.weight == 1).all())
    assert mixer.conv.bias is not None
    assert not mixer.conv.bias.any()


@pytest.mark.parametrize(
    ("mixer", "gates", "sentence"),
    [
        ({"num_heads": 5}, [], "not a multiple of 5 heads"),
        ({"num_groups": 3}, [], "cannot be divided among 3 groups"),
        ({"out_norm": {"kind": "layernorm"}}, [], "use rmsnorm or null"),
        ({}, ["learned-sink"], "lse is of softmax attention"),
        ({}, [{"site": "sdpa", "inputs": ["q"]}], "q is one per group"),
        ({}, ["scores-x"], "has no 'q_rot'"),
    ],
)
def test_what_cannot_work_is_refused(mixer: dict, gates: list, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        layer(gates, **mixer)
