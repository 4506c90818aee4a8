import pytest
import torch
from torch.nn import functional as F

from gatelm.inference.prefill import DecoderPrefill, Prefill, continue_greedily, token_losses
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig

TREE = {
    "vocab_size": 30,
    "hidden_dim": 16,
    "num_layers": 3,
    "layer": {
        "mixer": {"num_heads": 4, "num_kv_heads": 2},
        "ffn": {"ffn_dim": 24},
        "gates": ["sdpa-element"],
    },
    "init": {"std": 0.4},
}
WINDOW = ({"layers": [1], "set": {"mixer.window_tokens": 5}},)
DYNAMIC = {"kind": "dynamic_ntk", "factor": 4, "original_tokens": 10}


def model(**mixer):
    layer = {**TREE["layer"], "mixer": {**TREE["layer"]["mixer"], **mixer}}
    overrides = () if "rope" in mixer else WINDOW
    tree = {**TREE, "layer": layer, "layer_overrides": overrides}
    decoder = Decoder(ModelConfig.parse(tree))
    init_weights(decoder, 0)
    return decoder.eval()


def text(num_tokens):
    return torch.randint(30, (num_tokens,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("chunk", [1, 4, 7, 100])
@pytest.mark.parametrize("mixer", [{}, {"rope": {"scaling": DYNAMIC}}], ids=["plain", "dynamic"])
def test_chunks_give_the_losses_of_one_forward(mixer, chunk):
    decoder, tokens = model(**mixer), text(23)
    seen = []
    found = token_losses(DecoderPrefill(decoder), tokens, chunk_tokens=chunk, report=seen.append)
    with torch.no_grad():
        logits = decoder(tokens[None, :-1])[0]
    torch.testing.assert_close(found, F.cross_entropy(logits, tokens[1:], reduction="none"))
    assert seen[-1] == 22
    assert len(seen) == (1 if mixer else -(-22 // chunk))


@pytest.mark.parametrize("chunk", [3, 100])
def test_the_continuation_is_the_likeliest_token_each_time(chunk):
    decoder, prompt = model(), text(11)
    found = continue_greedily(DecoderPrefill(decoder), prompt, max_new_tokens=6, chunk_tokens=chunk)
    tokens = prompt
    for _ in range(6):
        with torch.no_grad():
            tokens = torch.cat((tokens, decoder(tokens[None])[0, -1].argmax()[None]))
    assert found == tokens[11:].tolist()
    ends = frozenset({found[2]})
    stopped = continue_greedily(DecoderPrefill(decoder), prompt, max_new_tokens=6, ends=ends)
    assert stopped == found[: found.index(found[2])]


def test_logits_come_in_blocks(monkeypatch):
    decoder, tokens = model(), text(20)
    whole = token_losses(DecoderPrefill(decoder), tokens)
    monkeypatch.setattr("gatelm.analysis.loss.LOGITS_PER_BLOCK", 90)
    torch.testing.assert_close(token_losses(DecoderPrefill(decoder), tokens), whole)


def test_mistakes_are_one_sentence():
    reader = DecoderPrefill(model())
    assert isinstance(reader, Prefill)
    with pytest.raises(ValueError, match="2 tokens or more, got 1"):
        token_losses(reader, text(1))
    with pytest.raises(ValueError, match="chunk_tokens 0"):
        token_losses(reader, text(5), chunk_tokens=0)
    with pytest.raises(ValueError, match="the prompt is empty"):
        continue_greedily(reader, text(0), max_new_tokens=1)
