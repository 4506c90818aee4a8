import pytest
from pydantic import TypeAdapter

from gatelm.config import Config, ConfigError
from gatelm.data.config import DataConfig, FileTokenizerConfig, TextDataConfig


class Holder(Config):
    data: DataConfig


def parse(**tree):
    return Holder.parse({"data": tree}).data


def test_kind_selects_the_config():
    assert parse(kind="text", source="sotu") == TextDataConfig(source="sotu")
    assert parse(kind="bigram_backcopy").seq_len == 64
    assert parse(kind="associative_recall").num_pairs == 8
    assert TypeAdapter(DataConfig).json_schema()["discriminator"]["propertyName"] == "kind"


def test_tree_round_trips():
    tokenizer = {"kind": "file", "path": "t.json"}
    cfg = parse(kind="text", source="sotu", tokenizer=tokenizer)
    assert isinstance(cfg.tokenizer, FileTokenizerConfig)
    assert parse(**cfg.tree()) == cfg
    prepared = parse(kind="text", prepared="folder")
    assert parse(**prepared.tree()) == prepared


def test_the_cache_is_no_part_of_the_identity():
    one = TextDataConfig(source="sotu", cache="/a")
    assert one.content_hash() == TextDataConfig(source="sotu").content_hash()
    assert one.content_hash() != TextDataConfig(source="sotu", seq_len=128).content_hash()


@pytest.mark.parametrize(
    ("tree", "sentence"),
    [
        ({"kind": "text"}, "set either source .* or prepared"),
        ({"kind": "text", "source": "a", "prepared": "b"}, "set either source .* or prepared"),
        ({"kind": "text", "prepared": "b", "holdout_every": 5}, "holdout_every has no effect"),
        ({"kind": "text", "source": "a", "sequence": 4}, "unknown key 'sequence'; did you mean"),
        ({"kind": "txt", "source": "a"}, "data: .*'text'"),
        ({"kind": "bigram_backcopy", "num_triggers": 40}, "num_triggers 40 is more than half"),
        ({"kind": "associative_recall", "num_pairs": 40}, "num_pairs 40 is more than num_keys"),
        ({"kind": "associative_recall", "seq_len": 17}, "must be at least 18"),
    ],
)
def test_mistakes_are_one_sentence(tree, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        parse(**tree)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["cache", "source", "prepared"])
def test_a_path_with_a_nul_is_refused(name):
    with pytest.raises(ConfigError, match=f"{name}: no path holds a NUL"):
        TextDataConfig.parse({"source": "x", **{name: "a\0b"}})
