"""Training a decoder that reads a second sequence, and what does not fit together."""

import pytest

from gatelm.cli.recipe import load_recipe
from gatelm.config import ConfigError
from gatelm.config.load import load
from gatelm.train.config import RunConfig
from gatelm.train.trainer import train

SMALL = (
    "train.total_steps=40",
    "train.batch_size=32",
    "train.micro_batch_size=16",
    "train.eval_every_steps=40",
    "train.eval_sequences=64",
    "train.health_every_steps=40",
    "train.health_sequences=16",
    "train.precision=fp32",
    "optim.lr=1e-2",
    "data.num_patches=3",
    "data.min_patches=2",
    "data.num_classes=3",
    "data.seq_len=8",
)


def test_the_recipe_learns_to_look(tmp_path):
    """With 40 steps it is well below the ln 3 of guessing; the analysis reads the text's layers."""
    config, _ = load_recipe("runs/patches", SMALL)
    assert isinstance(config, RunConfig)
    result = train(config, tmp_path / "run", report=lambda progress: None)
    assert result.metrics["val_loss"] < 0.8
    assert result.metrics["accuracy_asked"] > 0.5
    assert 0 < result.metrics["first_token_share"] < 1


def test_a_layer_may_read_it_and_have_experts(tmp_path):
    """The choices of both microbatches are counted first, with the images they were made of."""
    experts = "model.layer.ffn={kind: moe, num_experts: 4, top_k: 2, ffn_dim: 16}"
    config, _ = load_recipe("runs/patches", (*SMALL, "train.total_steps=2", experts))
    assert isinstance(config, RunConfig)
    result = train(config, tmp_path / "run", report=lambda progress: None)
    assert 1 <= result.metrics["expert_load_max"] <= 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("data.patch_dim=8", "model.encoder.input: the data needs"),
        ("data.num_patches=20", "fewer than data.num_patches 20"),
        ("data={kind: bigram_backcopy, seq_len: 8}", "has no second sequence"),
        ("model.layer.mixer.backend=flex", "has no gradients on cpu"),
    ],
)
def test_what_does_not_fit_is_refused(change, sentence, tmp_path):
    def begin():
        config = RunConfig.parse(load("runs/patches", (*SMALL[:-4], change)).tree)
        train(config, tmp_path / "run", report=lambda progress: None)

    with pytest.raises(ConfigError, match=sentence):
        begin()
