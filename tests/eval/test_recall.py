import pytest
import torch

from gatelm.analysis.probe.gatelm_probe import GatelmProbe
from gatelm.config import ConfigError
from gatelm.data.config import AssociativeRecallConfig
from gatelm.eval.recall import depth_of_answers, recall_by_depth, recall_config
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig

TASK = AssociativeRecallConfig(num_pairs=4, num_keys=40, num_values=8, seq_len=16)


def test_longer_rows_have_pairs_in_proportion():
    longer = recall_config(TASK, 64)
    assert (longer.seq_len, longer.num_pairs) == (64, 16)
    with pytest.raises(ConfigError, match="--lengths 256: num_pairs 64 is more than num_keys 40"):
        recall_config(TASK, 256)
    with pytest.raises(ConfigError, match="--lengths 3"):
        recall_config(TASK, 3)


def test_the_depth_is_the_place_of_the_key_among_the_pairs():
    rows = torch.tensor([[9, 3, 7, 5, 8, 3, 7, 5, 8], [9, 5, 7, 3, 8, 3, 8, 5, 7]])
    depths = depth_of_answers(rows, 2)
    assert depths[:, [5, 7]].tolist() == [[0.0, 0.5], [0.5, 0.0]]


class Remembers:
    """Answers rightly when the pair is in the later half of the pairs."""

    name, vocab_size, device = "remembers", TASK.num_keys + TASK.num_values + 1, torch.device("cpu")

    def observe(self, tokens, documents=None, observer=None):
        half = recall_config(TASK, tokens.shape[1]).num_pairs
        states = torch.zeros(*tokens.shape, self.vocab_size)
        for row, ids in enumerate(tokens.tolist()):
            pairs = ids[1 + half : 1 + 2 * half]
            known = dict(zip(pairs[::2], pairs[1::2], strict=True))
            for place, token in enumerate(ids):
                states[row, place, known.get(token, 0)] = 1.0
        return states

    def logits(self, hidden):
        return hidden


def test_accuracy_is_counted_by_length_and_depth():
    cells = recall_by_depth(Remembers(), TASK, [32, 16], depths=2, rows=8)
    found = {(c["length_tokens"], c["depth"]): c["score"] for c in cells}
    assert found == {(16, 25.0): 0.0, (16, 75.0): 1.0, (32, 25.0): 0.0, (32, 75.0): 1.0}
    assert sum(c["queries"] for c in cells if c["length_tokens"] == 16) == 8 * 4


def test_another_vocabulary_is_refused():
    tree = {
        "vocab_size": 12,
        "hidden_dim": 8,
        "num_layers": 1,
        "layer": {"mixer": {"num_heads": 1}, "ffn": {"ffn_dim": 8}},
    }
    model = Decoder(ModelConfig.parse(tree))
    init_weights(model, 0)
    with pytest.raises(ConfigError, match="a vocabulary of 12, but the task has 49"):
        recall_by_depth(GatelmProbe(model.eval()), TASK, [16])
