"""The house rules that can be read off the source: who imports whom, and how large things are."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import gatelm

SOURCE = Path(gatelm.__file__).parent
REPOSITORY = SOURCE.parents[1]

MAY_IMPORT = {
    "config": set(),
    "io": {"config"},
    "nn": {"config"},
    "presets": {"config", "nn"},
    "testing": {"config", "nn"},
    "analysis": {"config", "io", "nn"},
    "inference": {"config", "io", "nn", "analysis"},
    "longcontext": {"config", "io", "nn", "analysis", "inference"},
    "data": {"config", "io"},
    "sinks": {"config", "io", "nn", "analysis"},
    "optim": {"config", "io"},
    "train": {"config", "io", "nn", "presets", "analysis", "longcontext", "data", "optim"},
    "hf": {
        "config",
        "io",
        "nn",
        "testing",
        "analysis",
        "inference",
        "longcontext",
        "sinks",
        "data",
        "train",
    },
    "eval": {"config", "io", "nn", "analysis", "inference", "data"},
    "study": {"config", "io", "nn", "presets", "analysis", "data", "optim", "train"},
    "report": {"config", "io", "nn", "presets", "analysis", "study"},
}
HEAVY = {"torch", "transformers", "altair", "scipy", "numpy", "pandas", "tokenizers", "safetensors"}
MAX_FILES, MAX_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 15, 500, 70, 10


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_imports_follow_the_direction(path: Path) -> None:
    package = package_of(path)
    names = list(imported(ast.parse(path.read_text())))
    if package != "hf":
        assert not [n for n in names if n.split(".")[0] == "transformers"], "only hf/ may"
    if package in ("__init__", "__main__", "cli"):
        return
    parts = [n.split(".") for n in names if n.startswith("gatelm.")]
    others = {p[1] for p in parts} - {package}
    assert others <= MAY_IMPORT[package], f"{package} may not import {others - MAY_IMPORT[package]}"


def imported_files(tree: ast.AST, files: Collection[str]) -> set[str]:
    """Files of ours that a file imports anywhere, also for type checking or inside a function."""
    found = set(imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & set(files)
            found |= inside
            if len(inside) == len(node.names):
                found.discard(node.module)
    return found & set(files)


def test_no_circle_of_files() -> None:
    """No two files import each other, not even in a circle of three."""
    files: dict[str, Path] = {}
    for path in modules():
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {
        name: imported_files(ast.parse(path.read_text()), files) - {name}
        for name, path in files.items()
    }
    graph["gatelm.hf.probe.reading"] -= {"gatelm.hf.probe.hf_probe"}  # the last one left
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle of files: {' -> '.join(reversed(error.args[1]))}")


def test_one_public_class_of_a_name() -> None:
    found: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(path.relative_to(SOURCE).as_posix())
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_folders_can_be_read_at_a_glance() -> None:
    counts = Counter(path.parent for path in modules() if path.name != "__init__.py")
    assert {folder.name: n for folder, n in counts.items() if n > MAX_FILES} == {}


def test_cli_imports_nothing_heavy_at_the_top() -> None:
    light = {"gatelm.config", "gatelm.cli"}
    for path in (SOURCE / "cli").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            for name in imported(node) if isinstance(node, (ast.Import, ast.ImportFrom)) else ():
                assert name.split(".")[0] not in HEAVY, f"{path.relative_to(SOURCE)}: {name}"
                is_light = any(name == ok or name.startswith(ok + ".") for ok in light)
                assert not name.startswith("gatelm.") or is_light, (
                    f"{path.relative_to(SOURCE)}: {name}"
                )


@pytest.mark.parametrize("path", modules(), ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_sizes(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            # the parameters of a command are its options, many and with their help
            is_command = package_of(path) == "cli" and not node.name.startswith("_")
            first_line = node.body[0].lineno if is_command else node.lineno
            length = node.end_lineno - first_line + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"
            count = len(node.args.args) + len(node.args.kwonlyargs)
            assert is_command or count <= MAX_PARAMETERS, f"{node.name} has {count} parameters"


def test_every_module_says_what_it_is() -> None:
    silent = [
        path.relative_to(SOURCE).as_posix()
        for path in modules()
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent
