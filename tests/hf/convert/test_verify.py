import math

import pytest
import torch

from gatelm.config import ConfigError
from gatelm.data.tokenizer import byte_tokenizer
from gatelm.hf.convert.verify import (
    Outputs,
    VerificationError,
    compare,
    outputs,
    sample_tokens,
)
from gatelm.hf.probe.tokenizer import GatelmTokenizer
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.saving.export import export_model

TREE = {
    "vocab_size": 258,
    "hidden_dim": 16,
    "num_layers": 2,
    "layer": {"mixer": {"num_heads": 2}, "ffn": {"ffn_dim": 24}, "gates": ["sdpa-head"]},
}


def run(logits, stream=None):
    logits = torch.tensor(logits).view(1, 1, -1)
    stream = {-1: torch.tensor([[[1.0, -4.0]]])} if stream is None else stream
    return Outputs(torch.zeros(1, 1, dtype=torch.long), "a text", logits, stream)


def test_equal_outputs_differ_by_nothing():
    found = compare(run([1.0, 2.0]), run([1.0, 2.0]))
    assert (found.logits, found.hidden_relative, found.kl, found.same_choice) == (0, 0, 0, 1)
    assert found.passed


def test_the_numbers_are_what_they_say():
    found = compare(run([0.0, 0.0]), run([0.0, math.log(3.0)]))
    # p = (1/2, 1/2), q = (1/4, 3/4): KL(p || q) = ln 2 - ln 3 / 2
    assert found.kl == pytest.approx(math.log(2) - math.log(3) / 2)
    assert found.kl == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert found.logits == pytest.approx(math.log(3.0))
    assert not found.passed


def test_the_worst_layer_is_relative_to_its_own_largest_value():
    a = {-1: torch.tensor([1.0]), 0: torch.tensor([100.0, 0.0])}
    b = {-1: torch.tensor([1.01]), 0: torch.tensor([100.0, 0.5])}
    found = compare(run([1.0, 2.0], a), run([1.0, 2.0], b))
    assert found.worst_layer == -1
    assert found.hidden_relative == pytest.approx(0.01, rel=1e-4)
    assert not found.passed


@pytest.mark.parametrize("where", ["logits", "stream"])
def test_nan_never_passes(where):
    if where == "logits":
        result = run([math.nan, 2.0])
    else:
        broken = {-1: torch.tensor([math.nan, -4.0]), 0: torch.ones(2)}
        result = run([1.0, 2.0], broken)
    source = run([1.0, 2.0], {layer: torch.ones(2) for layer in result.stream})
    found = compare(source, result)
    assert not found.passed
    assert math.isnan(found.kl if where == "logits" else found.hidden_relative)


def test_other_layers_or_vocabularies_are_no_result():
    with pytest.raises(VerificationError, match=r"differ in shape: logits \(1, 1, 2\) and"):
        compare(run([1.0, 2.0]), run([1.0, 2.0, 3.0]))
    with pytest.raises(VerificationError, match="2 and 1 layers"):
        compare(run([1.0, 2.0], {-1: torch.ones(1), 0: torch.ones(1)}), run([1.0, 2.0]))


@pytest.fixture
def folder(tmp_path):
    model = Decoder(ModelConfig.parse(TREE, "model"))
    init_weights(model, 0)
    export_model(tmp_path / "model", model, byte_tokenizer(), {})
    return tmp_path / "model", model


def test_a_model_is_run_on_text_by_its_own_tokenizer(folder):
    where, model = folder
    found = outputs(where)
    assert found.tokens.shape == (2, 96)
    assert (found.tokens[:, 0] == 256).all()
    text = bytes(found.tokens[0, 1:].tolist()).decode()
    assert " the " in text
    with torch.no_grad():
        torch.testing.assert_close(found.logits, model(found.tokens))
    assert sorted(found.stream) == [-1, 0, 1]
    assert compare(found, outputs(where, like=found)).passed


def test_weights_can_be_rounded_first(folder):
    where, model = folder
    rounded = outputs(where, dtype="bfloat16")
    with torch.no_grad():
        expected = model.bfloat16().float()(rounded.tokens)
    torch.testing.assert_close(rounded.logits, expected)
    assert not compare(outputs(where), rounded).passed


class Vocabulary:
    vocab_size = 100


def test_a_tokenizer_of_another_vocabulary_is_refused():
    with pytest.raises(ConfigError, match="they do not belong together"):
        sample_tokens(Vocabulary(), GatelmTokenizer(byte_tokenizer()))


def test_without_a_tokenizer_bytes_are_ids():
    tokens, text = sample_tokens(Vocabulary(), None)
    assert tokens.max() < 100
    assert "no tokenizer" in text
