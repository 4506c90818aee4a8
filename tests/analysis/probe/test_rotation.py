import pytest
import torch

from gatelm.analysis.probe.handover import DecoderHandover
from gatelm.analysis.probe.rotation import Rotation, find_rotations
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.nn.positions.rope import RopeConfig, rotary_angles, rotate

TOKENS = torch.arange(20)


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_apply_is_the_models_rotation(pairs):
    rope = RopeConfig(pairs=pairs, partial_factor=0.5)
    x = torch.randn(2, 7, 3, 8)
    positions = torch.tensor([0, 3, 1, 9, 100, 5, 5])
    angles = rotary_angles(rope, 8, positions)
    expected = rotate(x, angles.cos(), angles.sin(), pairs)
    frequency = rotary_angles(rope, 8, torch.ones(1, dtype=torch.long))[0]
    torch.testing.assert_close(Rotation(frequency, pairs).apply(x, positions), expected)


def test_each_layer_is_recognised():
    tree = {
        "vocab_size": 32,
        "hidden_dim": 32,
        "num_layers": 4,
        "layer": {"mixer": {"num_heads": 4}, "ffn": {"ffn_dim": 48}, "gates": ["sdpa-head"]},
        "layer_overrides": [
            {"layers": (1,), "set": {"mixer.rope.pairs": "neighbours"}},
            {"layers": (2,), "set": {"mixer.rope": None}},
            {"layers": (3,), "set": {"mixer.rope.base": 500.0}},
        ],
    }
    model = Decoder(ModelConfig.parse(tree, "model"))
    init_weights(model, 0)
    found = find_rotations(DecoderHandover(model), TOKENS, 1000)
    assert [found[layer].pairs for layer in (0, 1)] == ["halves", "neighbours"]
    assert found[2].inverse_frequency is None
    bases = [float(found[layer].inverse_frequency[1] ** -4) for layer in (0, 3)]
    assert bases == pytest.approx([10_000, 500], rel=1e-4)


def test_gates_that_scale_whole_heads_turn_with_the_model(build):
    model = build("scores-x", "scores-key")
    assert find_rotations(DecoderHandover(model), TOKENS, 100)[0].inverse_frequency is not None


@pytest.mark.parametrize("site", ["q_rot", "k_rot"])
def test_gates_of_channels_after_the_rotation_are_refused(build, site):
    model = build({"site": site, "granularity": "element"})
    with pytest.raises(ValueError, match="q and k in layer 0 of the model are not turned by one"):
        find_rotations(DecoderHandover(model), TOKENS, 100)


class Positioned(DecoderHandover):
    """Its embedding depends on position, as with learned positions of another library."""

    def hidden(self, tokens, positions, kernel):
        return super().hidden((tokens + positions) % 32, positions, kernel)


def test_values_that_change_with_position_are_refused(build):
    with pytest.raises(ValueError, match="values in layer 0 of the model change with position"):
        find_rotations(Positioned(build()), TOKENS, 100)


class Foreign(DecoderHandover):
    """Knows of rotary embeddings that some of its layers cannot have."""

    def inverse_frequencies(self):
        return [torch.ones(99), *super().inverse_frequencies()]


def test_an_embedding_wider_than_the_heads_is_passed_over(build):
    assert len(find_rotations(Foreign(build()), TOKENS, 100)[0].inverse_frequency) == 4


class Partial(DecoderHandover):
    """Hands over one layer fewer than it has."""

    def __init__(self, model):
        super().__init__(model, "a hybrid")
        self.num_layers += 1


def test_layers_that_are_not_handed_over_are_named(build):
    with pytest.raises(ValueError, match="layers 2 of a hybrid have no softmax attention"):
        find_rotations(Partial(build()), TOKENS, 100)
