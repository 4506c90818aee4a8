import pytest

from gatelm.config import ConfigError


def test_only_what_changes_the_result_changes_the_hash(tiny):
    base = tiny().content_hash()
    same = {"log_every_steps": 7, "checkpoint_every_steps": 3, "keep_checkpoints": 9, "threads": 2,
            "device": "auto", "stop_at_step": 2, "eval_every_steps": 5}  # fmt: skip
    assert tiny({"name": "other", "train": same}).content_hash() == base
    for other in ({"seed": 2}, {"train": {"precision": "bf16"}}, {"train": {"total_steps": 7}},
                  {"optim": {"lr": 1e-2}}, {"model": {"layer": {"gates": []}}}):  # fmt: skip
        assert tiny(other).content_hash() != base


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"train": {"micro_batch_size": 5}}, "micro_batch_size 5 is more than batch_size 4"),
        ({"train": {"total_steps": 0}}, "train.total_steps"),
        ({"train": {"total_step": 3}}, "did you mean 'total_steps'"),
        ({"train": {"spike_policy": "ignore"}}, "train.spike_policy"),
        ({"train": {"stop_at_step": -1}}, "train.stop_at_step"),
        (
            {"model": {"position_embedding": {"kind": "learned", "max_tokens": 8}}},
            "data.seq_len 16 is more than",
        ),
    ],
)
def test_mistakes_name_their_path(tiny, tree, message):
    with pytest.raises(ConfigError, match=message):
        tiny(tree)


def test_the_vocabulary_comes_from_the_data_or_must_equal_it(tiny):
    assert tiny().model_for(17).vocab_size == 17
    assert tiny({"model": {"vocab_size": 17}}).model_for(17).vocab_size == 17
    with pytest.raises(ConfigError, match=r"model\.vocab_size: 18, but the data has"):
        tiny({"model": {"vocab_size": 18}}).model_for(17)
