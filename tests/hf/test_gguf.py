"""GGUF: the scaling of positions, from keys and from tensors, in every command."""

import math
import sys
from pathlib import Path

import pytest
import torch

from gatelm.config import ConfigError
from gatelm.hf.convert.checkpoint import read_source
from gatelm.hf.convert.convert import ConvertOptions, convert
from gatelm.hf.load import open_model
from gatelm.train.saving.export import load_model

pytest.importorskip("gguf")
sys.path.insert(0, str(Path(__file__).parents[1] / "fuzz"))
from assets import write_gguf

PAIRS = 4
BASE = 10000.0
PLAIN = BASE ** -(torch.arange(PAIRS, dtype=torch.float64) / PAIRS)
SCALING = "llama.rope.scaling."


def frequencies(path):
    probe, _ = open_model(path, device="cpu")
    return probe.model.model.rotary_emb.inv_freq.double()


def llama3_divisors():
    """Llama 3.1's rule, written out from its description."""
    out = []
    for frequency in PLAIN.tolist():
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4:
            out.append(1.0)
        elif wavelength > 8192 / 1:
            out.append(8.0)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            out.append(1 / ((1 - smooth) / 8 + smooth))
    return out


def test_no_scaling(tmp_path):
    found = frequencies(write_gguf(tmp_path / "m.gguf"))
    torch.testing.assert_close(found, PLAIN, rtol=1e-5, atol=0)
    none = write_gguf(tmp_path / "n.gguf", **{f"{SCALING}type": "none"})
    torch.testing.assert_close(frequencies(none), PLAIN, rtol=1e-5, atol=0)


def test_tensors_without_a_place_are_refused(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", more_tensors={"blk.0.attn_gate.weight": (4, 32)})
    for read in (open_model, read_source):
        with pytest.raises(ConfigError, match=r"no place for 1 of the tensors \(blk.0.attn_gate"):
            read(path)
    probe, _ = open_model(path, device="cpu", unknown_tensors="ignore")
    tokens = torch.arange(9)[None]
    plain, _ = open_model(write_gguf(tmp_path / "n.gguf"), device="cpu")
    torch.testing.assert_close(probe.observe(tokens), plain.observe(tokens))


@pytest.mark.parametrize("base", [0.0, 1e-40, -5.0])
def test_a_base_that_turns_nothing_is_refused(tmp_path, base):
    path = write_gguf(tmp_path / "m.gguf", **{"llama.rope.freq_base": base})
    with pytest.raises(ConfigError, match="rope_theta"):
        open_model(path, device="cpu")


def test_linear(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", **{f"{SCALING}type": "linear", f"{SCALING}factor": 4.0})
    torch.testing.assert_close(frequencies(path), PLAIN / 4, rtol=1e-5, atol=0)


def test_yarn(tmp_path):
    keys = {"type": "yarn", "factor": 4.0, "original_context_length": 32}
    path = write_gguf(tmp_path / "m.gguf", **{SCALING + k: v for k, v in keys.items()})
    probe, _ = open_model(path, device="cpu")
    rope = probe.model.config.rope_parameters
    assert (rope["rope_type"], rope["factor"]) == ("yarn", 4.0)
    assert rope["original_max_position_embeddings"] == 32
    found = probe.model.model.rotary_emb.inv_freq.double()
    assert found[-1] == pytest.approx(float(PLAIN[-1]) / 4, rel=1e-4)
    assert probe.model.model.rotary_emb.attention_scaling == pytest.approx(0.1 * math.log(4) + 1)


@pytest.mark.parametrize("divisors", [[1.0, 1.5, 3.0, 8.0], llama3_divisors()])
def test_factors_of_frequencies(tmp_path, divisors):
    path = write_gguf(tmp_path / "m.gguf", rope_factors=divisors)
    expected = PLAIN / torch.tensor(divisors, dtype=torch.float64)
    torch.testing.assert_close(frequencies(path), expected, rtol=1e-4, atol=0)


def test_the_published_rule_is_recognised(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", rope_factors=llama3_divisors())
    probe, _ = open_model(path, device="cpu")
    assert probe.model.config.rope_parameters["rope_type"] == "llama3"


@pytest.mark.parametrize("kind", ["linear", "yarn", "factors", "llama3"])
def test_a_converted_model_has_the_scaling_and_computes_the_same(tmp_path, kind):
    keys = {"type": kind, "factor": 4.0, "original_context_length": 32}
    metadata = {SCALING + k: v for k, v in keys.items()}
    if kind in ("factors", "llama3"):
        divisors = llama3_divisors() if kind == "llama3" else [1.0, 1.5, 3.0, 8.0]
        metadata = {"rope_factors": divisors}
    path = write_gguf(tmp_path / "m.gguf", **metadata)
    plain = write_gguf(tmp_path / "plain.gguf")
    convert(path, tmp_path / "ours", ConvertOptions())
    model, _ = load_model(tmp_path / "ours")
    assert model.cfg.layer.mixer.rope.scaling is not None
    tokens = torch.arange(100)[None] % 300
    ours = model.eval()(tokens)
    probe, _ = open_model(path, device="cpu")
    theirs = probe.model(tokens).logits
    unscaled = open_model(plain, device="cpu")[0].model(tokens).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert (theirs - unscaled).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"type": "su"}, "rope.scaling.type is 'su'"),
        ({"type": "linear", "factor": -1.0}, "rope.scaling.factor is -1.0; it must be above 0"),
        ({"type": "longrope", "factor": 2.0}, "its factors are missing"),
        ({"type": "yarn", "factor": 2.0, "yarn_log_multiplier": 0.5}, "yarn_log_multiplier is 0.5"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path, keys, said):
    path = write_gguf(tmp_path / "m.gguf", **{SCALING + k: v for k, v in keys.items()})
    with pytest.raises(ConfigError, match=said):
        open_model(path, device="cpu")
    with pytest.raises(ConfigError, match=said):
        convert(path, tmp_path / "ours", ConvertOptions())
