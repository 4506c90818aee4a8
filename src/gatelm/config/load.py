"""Merge YAML files and `path=value` overrides into one tree with the source of each value."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gatelm.config.base import ConfigError
from gatelm.config.yaml import YamlError, parse

EXTENDS = "extends"


@dataclass(frozen=True)
class Loaded:
    """A merged tree; `sources` maps each leaf's dotted path to the file or option that set it."""

    tree: dict[str, Any]
    sources: dict[str, str] = field(default_factory=dict)
    path: Path | None = None


def packaged_recipes() -> Path:
    """The folder of recipes: beside the installed package, or the repository's own."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parents[1] / "recipes"


def find_recipe(name: str | Path) -> Path:
    """Find the file `name` or a packaged recipe, whose folder and `.yaml` may be left out.

    Raises:
        ConfigError: when neither exists, or several recipes have the name.
    """
    path = Path(name)
    if path.is_file():
        return path
    root = packaged_recipes()
    shipped = sorted(p.relative_to(root) for p in root.rglob("*.yaml"))
    wanted = path if path.suffix == ".yaml" else path.with_name(f"{path.name}.yaml")
    found = [p for p in shipped if p == wanted] or [p for p in shipped if p.match(str(wanted))]
    if len(found) == 1:
        return root / found[0]
    if found:
        raise ConfigError(f"recipe {str(name)!r} is one of " + ", ".join(map(str, found)))
    names = ", ".join(map(str, shipped))
    raise ConfigError(f"no recipe {str(name)!r}: not a file, nor one of {names}")


def parse_value(text: str) -> Any:
    """Parse one YAML value: `3e-3` is a number, `[a, b]` a list, `null` is None."""
    try:
        return parse(text)
    except YamlError as error:
        raise ConfigError(f"cannot read the value {shortened(text)!r}: {error}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a file that holds one YAML mapping.

    Raises:
        ConfigError: when it is missing, not YAML, or not a mapping.
    """
    try:
        tree = parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (YamlError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML ({error})") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values at the top")
    return tree


def load(path: str | Path, overrides: Iterable[str] = ()) -> Loaded:
    """Load a recipe: merge its `extends` chain, then apply `path=value` overrides."""
    path = find_recipe(path)
    loaded = _load_file(path, ())
    tree, sources = loaded.tree, loaded.sources
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"--set {override}: expected PATH=VALUE, e.g. optim.lr=1e-3")
        set_path(tree, key.strip(), parse_value(text))
        _record(sources, key.strip(), parse_value(text), f"--set {override}")
    return Loaded(tree, sources, path)


def load_tree(tree: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Merge the `extends` (relative to `where`) of a tree that stands inside another file."""
    return _resolve(dict(tree), where, ()).tree


def dump(tree: Any) -> str:
    """Write a plain tree as YAML text, keys in the order given."""
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=100)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base`: mappings are merged, all other values (lists too) replace.

    A mapping that names another `kind` replaces the base's, whose keys would mean nothing there.
    """
    out = copy.deepcopy(dict(base))
    for key, value in over.items():
        old = out.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            changes_kind = "kind" in value and value["kind"] != old.get("kind", value["kind"])
            out[key] = copy.deepcopy(dict(value)) if changes_kind else merge(old, value)
        else:
            out[key] = copy.deepcopy(value)
    return out


def set_path(tree: Any, path: str, value: Any) -> None:
    """Set `tree`'s value at a dotted path, in place; numbers index lists, missing keys are made.

    Raises:
        ConfigError: when a step of the path is not a mapping or list, or a list is too short.
    """
    *parents, last = path.split(".")
    node = tree
    for depth, part in enumerate(parents):
        here = ".".join(parents[: depth + 1])
        if isinstance(node, list):
            node = node[_index(node, part, here)]
        else:
            if node.get(part) is None:
                node[part] = {}
            node = node[part]
        if not isinstance(node, (dict, list)):
            raise ConfigError(f"{path}: {here} is the value {node!r}, which has no keys below it")
    if isinstance(node, list):
        node[_index(node, last, path)] = copy.deepcopy(value)
    else:
        node[last] = copy.deepcopy(value)


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return every leaf of a plain tree by its dotted path; empty mappings and lists are leaves."""
    if isinstance(tree, Mapping) and tree:
        items: Iterable[tuple[Any, Any]] = tree.items()
    elif isinstance(tree, (list, tuple)) and tree:
        items = enumerate(tree)
    else:
        return {prefix: tree}
    out: dict[str, Any] = {}
    for key, value in items:
        out.update(flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return out


def diff(left: Any, right: Any) -> list[tuple[str, Any, Any]]:
    """Return the leaves in which two trees differ: (path, left, right); a missing leaf is `...`."""
    a, b = flatten(left), flatten(right)
    paths = list(dict.fromkeys([*a, *b]))
    return [(p, a.get(p, ...), b.get(p, ...)) for p in paths if a.get(p, ...) != b.get(p, ...)]


def _load_file(path: Path, chain: tuple[Path, ...]) -> Loaded:
    resolved = path.resolve()
    if resolved in chain:
        raise ConfigError(f"{path}: extends itself, through {' -> '.join(p.name for p in chain)}")
    return _resolve(read_yaml(path), path, (*chain, resolved))


def _resolve(tree: dict[str, Any], path: Path, chain: tuple[Path, ...]) -> Loaded:
    """Merge every `extends` of `tree`, at the top or inside a mapping, the innermost first."""
    parent = tree.pop(EXTENDS, None)
    own: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, value in tree.items():
        inner = _resolve(dict(value), path, chain) if isinstance(value, Mapping) else None
        own[key] = inner.tree if inner else value
        inner_sources = inner.sources if inner else dict.fromkeys(flatten(value), path.name)
        for leaf, source in inner_sources.items():
            sources[f"{key}.{leaf}" if leaf else str(key)] = source
    if parent is None:
        return Loaded(own, sources or {"": path.name}, path)
    parent_path = path.parent / str(parent)
    base = _load_file(parent_path if parent_path.is_file() else find_recipe(str(parent)), chain)
    merged = merge(base.tree, own)
    known = {**base.sources, **sources}
    return Loaded(merged, {leaf: known.get(leaf, path.name) for leaf in flatten(merged)}, path)


def _record(sources: dict[str, str], prefix: str, value: Any, source: str) -> None:
    for leaf in [leaf for leaf in sources if leaf == prefix or leaf.startswith(prefix + ".")]:
        del sources[leaf]
    for leaf in flatten(value, prefix):
        sources[leaf] = source


def _index(node: list[Any], part: str, path: str) -> int:
    if not part.isdigit() or int(part) >= len(node):
        raise ConfigError(f"{path}: the list there has {len(node)} items; {part!r} is none of them")
    return int(part)


def shortened(text: str, width: int = 80) -> str:
    """Shorten a text to `width` characters by leaving out its middle."""
    return text if len(text) <= width else f"{text[: width // 2]}...{text[-width // 4 :]}"
