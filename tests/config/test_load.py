"""YAML, `extends`, overrides, provenance, hashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gatelm.config import Config, ConfigError, not_identity
from gatelm.config.load import (
    diff,
    find_recipe,
    flatten,
    load,
    merge,
    packaged_recipes,
    parse_value,
    set_path,
)


class Inner(Config):
    kind: str = "a"
    width: int = 3


class Outer(Config):
    inner: Inner = Inner()
    rate: float = 1.0
    threads: int = not_identity(1)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_numbers_without_a_dot_are_numbers() -> None:
    assert parse_value("1e-3") == 1e-3
    assert parse_value("3") == 3
    assert parse_value("-2E+4") == -2e4
    assert parse_value("[a, null]") == ["a", None]


def test_extends_and_overrides_and_where_values_came_from(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", "inner: {kind: a, width: 5}\nrate: 2.0\n")
    top = write(tmp_path, "top.yaml", "extends: base.yaml\nrate: 3.0\n")
    loaded = load(top, ["inner.width=7"])
    assert loaded.tree == {"inner": {"kind": "a", "width": 7}, "rate": 3.0}
    assert loaded.sources == {
        "inner.kind": "base.yaml",
        "inner.width": "--set inner.width=7",
        "rate": "top.yaml",
    }


def test_extends_inside_a_mapping(tmp_path: Path) -> None:
    write(tmp_path, "inner.yaml", "kind: b\nwidth: 9\n")
    top = write(tmp_path, "top.yaml", "inner: {extends: inner.yaml, width: 1}\n")
    loaded = load(top)
    assert loaded.tree == {"inner": {"kind": "b", "width": 1}}
    assert loaded.sources["inner.kind"] == "inner.yaml"


def test_another_kind_replaces_the_whole_mapping() -> None:
    merged = merge({"f": {"kind": "a", "x": 1}, "l": [1, 2]}, {"f": {"kind": "b"}, "l": [3]})
    assert merged == {"f": {"kind": "b"}, "l": [3]}


def test_extending_oneself_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "extends: b.yaml\n")
    write(tmp_path, "b.yaml", "extends: a.yaml\n")
    with pytest.raises(ConfigError, match="extends itself"):
        load(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [1,", "not valid YAML"),
        ("- 1\n", "expected a mapping"),
        ("extends: nothing.yaml\n", "no recipe 'nothing.yaml'"),
    ],
)
def test_unreadable_files(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(write(tmp_path, "x.yaml", text))


def test_missing_recipe_lists_what_ships() -> None:
    with pytest.raises(ConfigError, match=r"models/paper-1\.7b-28l\.yaml"):
        load("no-such-recipe")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("text", "runs/text.yaml"),
        ("runs/text", "runs/text.yaml"),
        ("demo.yaml", "studies/demo.yaml"),
    ],
)
def test_shipped_recipes_by_name(name: str, found: str) -> None:
    assert find_recipe(name) == packaged_recipes() / found


@pytest.mark.parametrize("override", ["rate", "=3", "rate.x=1"])
def test_bad_overrides(tmp_path: Path, override: str) -> None:
    path = write(tmp_path, "x.yaml", "rate: 2\n")
    with pytest.raises(ConfigError):
        load(path, [override])


def test_set_path_reaches_into_lists() -> None:
    tree = {"a": [{"b": 1}]}
    set_path(tree, "a.0.b", 2)
    assert tree == {"a": [{"b": 2}]}
    with pytest.raises(ConfigError, match="has 1 items"):
        set_path(tree, "a.1.b", 2)


def test_unknown_keys_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"^f\.yaml: inner: unknown key 'widht'.*'width'\?$"):
        Outer.parse({"inner": {"widht": 3}}, "f.yaml")
    with pytest.raises(ValueError, match="did you mean 'rate'"):
        Outer(rat=2)  # type: ignore[call-arg]


def test_configs_are_frozen_and_replace_validates() -> None:
    cfg = Outer()
    with pytest.raises(ValueError, match="frozen"):
        cfg.rate = 2.0  # type: ignore[misc]
    assert cfg.replace(rate=2).rate == 2.0
    with pytest.raises(ValueError, match="rate"):
        cfg.replace(rate="fast")


def test_hash_ignores_what_does_not_change_the_result() -> None:
    assert Outer(threads=4).content_hash() == Outer().content_hash()
    assert Outer(rate=2).content_hash() != Outer().content_hash()
    assert Outer(inner=Inner(width=4)).content_hash() != Outer().content_hash()


def test_flatten_and_diff() -> None:
    assert flatten({"a": {"b": 1, "c": []}, "d": [2]}) == {"a.b": 1, "a.c": [], "d.0": 2}
    assert diff({"a": 1, "b": 2}, {"a": 1, "c": 3}) == [("b", 2, ...), ("c", ..., 3)]
