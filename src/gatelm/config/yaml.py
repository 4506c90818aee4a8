"""A parser of YAML 1.2 with limits on depth and size, so that no file exhausts the machine."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any, ClassVar

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

MAX_DEPTH = 64
"""Largest number of mappings and lists inside each other."""
MAX_VALUES = 100_000
"""Largest number of values, with every alias written out."""


class YamlError(ValueError):
    """An error in a YAML text: one sentence that says what is wrong, and where."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2, and limits."""

    # pyright takes PyYAML's class attribute for one of instances
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # pyright: ignore

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Compose the next node; the depth is limited, because the composer is recursive."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise YamlError(f"{_line(self.peek_event())}: more than {MAX_DEPTH} levels deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Make a dict; a key that occurs twice is an error."""
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise YamlError(
                    f"{_line(key_node)}: a key must be plain text, not a list or mapping"
                )
            if key in seen:
                raise YamlError(f"{_line(key_node)}: the key {key!r} stands there twice")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: ScalarNode) -> int:
        """An integer: decimal, 0o octal or 0x hexadecimal, as in YAML 1.2."""
        text = str(node.value).replace("_", "")
        if len(text) > 64:
            raise YamlError(f"{_line(node)}: an integer of {len(text)} digits")
        return int(text, 0) if text.lstrip("+-").startswith(("0o", "0x")) else int(text)


_SCALARS = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "int": (r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    "float": (
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "merge": (r"<<", "<"),
}
for _kind, (_pattern, _first) in _SCALARS.items():
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(rf"^(?:{_pattern})$"), list(_first)
    )
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def parse(text: str) -> Any:
    """Parse a YAML text into the value that it stands for.

    Raises:
        YamlError: for text that is no YAML, says a key twice, or grows beyond the limits.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _size(node, {}, [])
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        raise YamlError(_sentence(error)) from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise YamlError(" ".join(str(error).split())) from None


def _size(node: Node, known: dict[int, int], above: list[int]) -> int:
    """Number of values below a node with every alias written out."""
    if id(node) in above:
        raise YamlError(f"{_line(node)}: an alias that contains itself")
    if id(node) not in known:
        children: list[Node] = []
        if isinstance(node, MappingNode):
            children = [inner for pair in node.value for inner in pair]
        elif isinstance(node, SequenceNode):
            children = list(node.value)
        known[id(node)] = 1 + sum(_size(child, known, [*above, id(node)]) for child in children)
        if known[id(node)] > MAX_VALUES:
            raise YamlError(f"{_line(node)}: more than {MAX_VALUES:,} values, aliases written out")
    return known[id(node)]


def _line(item: Any) -> str:
    return f"line {item.start_mark.line + 1}"


def _sentence(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())
    context = getattr(error, "context", None)
    words = f"{context}, {problem}" if context else problem
    return f"line {mark.line + 1}, column {mark.column + 1}: {words}"
