import pytest

from gatelm.config import ConfigError
from gatelm.optim.adamw import AdamWConfig


def test_the_default_groups_are_there_in_order():
    assert AdamWConfig().group_order == (
        "gates",
        "gate_biases",
        "vectors",
        "embeddings",
        "matrices",
    )


def test_naming_a_default_group_changes_only_what_is_given():
    cfg = AdamWConfig.parse({"groups": {"gates": {"lr_scale": 0.1}}})
    assert cfg.groups["gates"].lr_scale == 0.1
    assert cfg.groups["gates"].pattern == AdamWConfig().groups["gates"].pattern
    assert cfg.groups["vectors"] == AdamWConfig().groups["vectors"]


def test_own_groups_are_tried_first_and_null_drops_a_default():
    cfg = AdamWConfig.parse({"groups": {"embeddings": None, "head": {"pattern": "head"}}})
    assert cfg.group_order == ("head", "gates", "gate_biases", "vectors", "matrices")


def test_the_resolved_tree_parses_to_the_same_config():
    cfg = AdamWConfig.parse({"groups": {"head": {"pattern": "head"}}, "schedule": {"kind": "wsd"}})
    again = AdamWConfig.parse(cfg.tree())
    assert again == cfg
    assert again.content_hash() == cfg.content_hash()


def test_the_order_of_groups_is_part_of_the_identity():
    a, b = {"pattern": "a"}, {"pattern": "b"}
    one = AdamWConfig.parse({"groups": {"a": a, "b": b}})
    two = AdamWConfig.parse({"groups": {"b": b, "a": a}})
    assert one.content_hash() != two.content_hash()


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"group_order": ["gate"]}, "did you mean 'gates'"),
        ({"group_order": ["gates"]}, "must name every group once"),
        ({"groups": {"x": {"pattern": "("}}}, "not a regular expression"),
        ({"groups": {"x": {"patern": "y"}}}, "did you mean 'pattern'"),
        ({"betas": [0.9, 1.0]}, "below 1"),
        ({"lr": 0}, "lr"),
        ({"grad_clip": 0}, "grad_clip"),
        ({"groups": 3}, "groups"),
    ],
)
def test_mistakes_are_one_clear_sentence(tree, message):
    with pytest.raises(ConfigError, match=message) as error:
        AdamWConfig.parse(tree)
    assert "\n" not in str(error.value)
