import logging
import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from gatelm.config import ConfigError
from gatelm.nn.positions.rope import (
    RopeConfig,
    lengths_so_far,
    rotary_angles,
    rotary_frequencies,
    rotation,
)
from gatelm.testing.rope import reference_frequency

logging.getLogger("transformers").disabled = True

HEADS = st.sampled_from([4, 6, 8, 16, 64, 80, 96, 128, 256])
BASES = st.sampled_from([100.0, 10_000.0, 100_000.0, 500_000.0, 1e6, 1e7])
ORIGINAL = st.sampled_from([16, 64, 512, 2048, 4096, 8192, 131_072])
FACTOR = st.sampled_from([1.0, 1.5, 2.0, 3.7, 4.0, 8.0, 32.0, 64.0])
OPTIONAL = st.none() | st.sampled_from([0.5, 0.707, 1.0, 1.3])

SCALINGS = {
    "linear": st.just({}),
    "dynamic_ntk": st.fixed_dictionaries({"alpha": st.sampled_from([1.0, 2.0, 4.0])}),
    "yarn": st.fixed_dictionaries(
        {
            "beta_fast": st.sampled_from([16.0, 32.0, 64.0]),
            "beta_slow": st.sampled_from([0.5, 1.0, 2.0]),
            "bounds": st.sampled_from(["whole", "exact"]),
        },
        optional={"attention_factor": OPTIONAL},
    )
    | st.fixed_dictionaries({"mscale": st.just(0.707), "mscale_all_dim": st.just(1.0)}),
    "llama3": st.fixed_dictionaries(
        {
            "low_freq_factor": st.sampled_from([0.5, 1.0, 2.0]),
            "high_freq_factor": st.sampled_from([4.0, 8.0]),
        }
    ),
}
THEIR_NAMES = {"dynamic_ntk": "dynamic"}


def theirs(kind, base, head_dim, partial, original, factor, more, seq_len=None):
    """Frequencies and attention factor of transformers for the same settings."""
    parameters = {
        "rope_type": THEIR_NAMES.get(kind, kind),
        "rope_theta": base,
        "partial_rotary_factor": partial,
        "factor": more.get("alpha", factor),
        "original_max_position_embeddings": original,
    }
    for ours, name in (
        ("beta_fast", "beta_fast"),
        ("beta_slow", "beta_slow"),
        ("attention_factor", "attention_factor"),
        ("mscale", "mscale"),
        ("mscale_all_dim", "mscale_all_dim"),
        ("low_freq_factor", "low_freq_factor"),
        ("high_freq_factor", "high_freq_factor"),
        ("short_factors", "short_factor"),
        ("long_factors", "long_factor"),
    ):
        if ours in more:
            value = more[ours]
            parameters[name] = list(value) if isinstance(value, tuple) else value
    if "bounds" in more:
        parameters["truncate"] = more["bounds"] == "whole"
    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        max_position_embeddings=original,
        rope_parameters=parameters,
    )
    return ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, seq_len=seq_len)


def rope(kind, base, partial, original, factor, more):
    scaling = {"kind": kind, "original_tokens": original, "factor": factor, **more}
    return RopeConfig.parse({"base": base, "partial_factor": partial, "scaling": scaling})


def at(length):
    """The last position of a text of this length."""
    return torch.arange(length - 1, length)


@st.composite
def cases(draw):
    kind = draw(st.sampled_from(sorted(SCALINGS)))
    head_dim = draw(HEADS)
    partial = draw(st.sampled_from([0.25, 0.5, 1.0]))
    rotary = int(head_dim * partial)
    if rotary % 2 or rotary < 4 or head_dim * partial != rotary:
        partial = 1.0
    return (kind, draw(BASES), head_dim, partial, draw(ORIGINAL), draw(FACTOR)), draw(
        SCALINGS[kind]
    )


@given(cases(), st.sampled_from([0.3, 1.0, 1.7, 4.0]))
@example((("yarn", 1e4, 64, 1.0, 16, 4.0), {}), 1.0)
@example((("yarn", 1e7, 4, 1.0, 131_072, 4.0), {"bounds": "exact"}), 1.0)
@settings(max_examples=120, deadline=None)
def test_frequencies_and_amplitude_are_those_of_transformers(case, stretch):
    (kind, base, head_dim, partial, original, factor), more = case
    cfg = rope(kind, base, partial, original, factor, more)
    length = max(2, int(original * stretch))
    expected, amplitude = theirs(kind, base, head_dim, partial, original, factor, more, length)
    found = rotary_frequencies(cfg, head_dim, at(length))
    found = found[-1] if found.dim() == 2 else found
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    assert cfg.amplitude == pytest.approx(amplitude, rel=1e-12)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_longrope_is_that_of_transformers(data):
    head_dim, base = data.draw(HEADS), data.draw(BASES)
    factors = st.lists(st.floats(1.0, 64.0), min_size=head_dim // 2, max_size=head_dim // 2).map(
        tuple
    )
    more = {"short_factors": data.draw(factors), "long_factors": data.draw(factors)}
    if (given_factor := data.draw(OPTIONAL)) is not None:
        more["attention_factor"] = given_factor
    original, factor = data.draw(ORIGINAL), data.draw(FACTOR)
    cfg = rope("longrope", base, 1.0, original, factor, more)
    for length in (original, original + 1):
        expected, amplitude = theirs(
            "longrope", base, head_dim, 1.0, original, factor, more, length
        )
        found = rotary_frequencies(cfg, head_dim, at(length))[-1]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
        assert cfg.amplitude == pytest.approx(amplitude, rel=1e-12)


@given(cases(), st.sampled_from(["index", "rotations"]))
@settings(max_examples=100, deadline=None)
def test_frequencies_are_those_of_the_formulas(case, ramp):
    (kind, base, head_dim, partial, original, factor), more = case
    if kind == "yarn" and ramp == "rotations":
        more = {**more, "ramp": ramp}
        more.pop("bounds", None)
    if kind == "linear" and ramp == "rotations":
        kind = "ntk"
    cfg = rope(kind, base, partial, original, factor, more)
    length = 3 * original
    found = rotary_frequencies(cfg, head_dim, at(length))
    found = found[-1] if found.dim() == 2 else found
    rotary = cfg.rotary_dim(head_dim)
    expected = [reference_frequency(cfg, pair, rotary, length) for pair in range(rotary // 2)]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=0)


def test_ntk_is_a_base_change_that_leaves_the_fastest_pair_and_slows_the_slowest_by_the_factor():
    plain = rotary_frequencies(RopeConfig(), 64, at(2))
    found = rotary_frequencies(rope("ntk", 1e4, 1.0, 512, 4.0, {}), 64, at(2))
    assert found[0] == plain[0]
    assert float(plain[-1] / found[-1]) == pytest.approx(4.0, rel=1e-5)
    changed = rotary_frequencies(RopeConfig(base=1e4 * 4.0 ** (64 / 62)), 64, at(2))
    assert torch.equal(found, changed)


def test_the_two_ramps_of_yarn_agree_at_the_ends_and_differ_between():
    found = {
        ramp: rotary_frequencies(rope("yarn", 1e4, 1.0, 4096, 4.0, {"ramp": ramp}), 128, at(2))
        for ramp in ("index", "rotations")
    }
    plain = rotary_frequencies(RopeConfig(), 128, at(2))
    for each in found.values():
        torch.testing.assert_close(each[:16], plain[:16])
        torch.testing.assert_close(each[-16:], plain[-16:] / 4)
    assert float((found["index"] / found["rotations"] - 1).abs().max()) > 0.1


def test_dynamic_ntk_changes_nothing_up_to_the_original_length():
    cfg = rope("dynamic_ntk", 1e4, 1.0, 32, 4.0, {})
    inside, beyond = torch.arange(32), torch.arange(33)
    torch.testing.assert_close(
        rotary_angles(cfg, 16, inside), rotary_angles(RopeConfig(), 16, inside)
    )
    changed = rotary_angles(cfg, 16, beyond)
    assert not torch.allclose(changed[:32], rotary_angles(cfg, 16, inside))


def test_each_document_has_its_own_length():
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4], [3, 4, 5, 6, 7, 8, 9, 0]])
    lengths = lengths_so_far(positions)
    assert lengths.tolist() == [[3, 3, 3, 5, 5, 5, 5, 5], [10] * 7 + [1]]
    cfg = rope("dynamic_ntk", 1e4, 1.0, 3, 4.0, {})
    packed = rotary_angles(cfg, 16, positions[:1])[0]
    alone = [rotary_angles(cfg, 16, torch.arange(n)) for n in (3, 5)]
    torch.testing.assert_close(packed, torch.cat(alone))


def test_the_amplitude_multiplies_cos_and_sin():
    cfg = rope("yarn", 1e4, 1.0, 512, 4.0, {})
    assert cfg.amplitude == pytest.approx(0.1 * math.log(4) + 1)
    cos, sin = rotation(cfg, 16, torch.arange(9))
    length = (cos.square() + sin.square()).sqrt()
    torch.testing.assert_close(length, torch.full_like(length, cfg.amplitude))
    assert rope("yarn", 1e4, 1.0, 512, 1.0, {}).amplitude == 1.0


def test_a_config_without_scaling_hashes_as_it_did():
    assert RopeConfig().content_hash() == "17c3dd5d73f4"
    assert rope("linear", 1e4, 1.0, 8, 2.0, {}).content_hash() != "17c3dd5d73f4"


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"kind": "yarnn", "factor": 2}, "yarnn"),
        ({"kind": "yarn", "factor": 2}, "scaling.original_tokens: this key is required"),
        ({"kind": "linear", "factor": 0.5}, "greater than or equal to 1"),
        ({"kind": "linear", "factr": 2}, "did you mean 'factor'?"),
        (
            {"kind": "yarn", "factor": 2, "original_tokens": 8, "beta_fast": 1},
            "beta_fast 1 must be more than beta_slow 1",
        ),
        (
            {"kind": "yarn", "factor": 2, "original_tokens": 8, "mscale": 1},
            "mscale and mscale_all_dim: set both or none",
        ),
        (
            {"kind": "llama3", "factor": 2, "original_tokens": 8, "high_freq_factor": 1},
            "high_freq_factor 1 must be more than low_freq_factor 1",
        ),
    ],
)
def test_mistakes_are_one_sentence_with_their_path(scaling, expected):
    with pytest.raises(ConfigError) as raised:
        RopeConfig.parse({"scaling": scaling})
    assert expected in str(raised.value)
    assert "scaling" in str(raised.value)


def test_factors_must_fit_the_heads():
    cfg = rope("longrope", 1e4, 1.0, 8, 2.0, {"short_factors": (1.0,), "long_factors": (2.0,)})
    with pytest.raises(ConfigError, match=r"rope\.scaling\.short_factors: 1 factors, but 4"):
        cfg.check(8, "layer 0: mixer")
    with pytest.raises(ConfigError, match="ntk spreads a factor over the pairs"):
        rope("ntk", 1e4, 1.0, 8, 2.0, {}).check(2, "mixer")
