"""`gatelm config`: what a recipe resolves to, and how two differ."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gatelm.cli.options import Json, Overrides
from gatelm.cli.output import echo, print_json

app = typer.Typer(help="Show, compare and explain configs.", no_args_is_help=True)


@app.command()
def show(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A YAML file or a shipped name.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Print every value of a recipe and where it came from: a file, --set, or the default."""
    from gatelm.cli.recipe import load_recipe
    from gatelm.config.load import flatten

    config, loaded = load_recipe(recipe, overrides or ())
    leaves = flatten(config.tree())
    taken = _taken_over(loaded.tree)
    sources = {path: _source(path, loaded.sources, taken) for path in leaves}
    if as_json:
        found = {p: {"value": v, "source": sources[p]} for p, v in leaves.items()}
        print_json({"hash": config.content_hash(), "values": found})
        return
    width = min(max(len(f"{p}: {_text(v)}") for p, v in leaves.items()), 72)
    for path, value in leaves.items():
        echo(f"{f'{path}: {_text(value)}':<{width}}  # {sources[path]}")
    echo(f"# content hash {config.content_hash()}")


@app.command()
def diff(
    left: Annotated[str, typer.Argument(metavar="LEFT", help="A recipe.")],
    right: Annotated[
        str | None, typer.Argument(metavar="[RIGHT]", help="Another; default: LEFT again.")
    ] = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Print the values in which RIGHT, with --set applied to it, differs from LEFT."""
    from gatelm.cli.recipe import load_recipe
    from gatelm.config.load import diff as differences

    one, _ = load_recipe(left)
    other, _ = load_recipe(right or left, overrides or ())
    found = differences(one.tree(), other.tree())
    if as_json:
        absent: dict[str, Any] = {"absent": True}
        rows = [
            {"path": p, "left": absent if a is ... else a, "right": absent if b is ... else b}
            for p, a, b in found
        ]
        print_json(rows)
        return
    for path, a, b in found:
        echo(f"{path}: {_text(a)} -> {_text(b)}")
    if not found:
        echo("no difference")


@app.command()
def gates(as_json: Json = False) -> None:
    """List the axes of a gate with their values, and the presets by name."""
    from gatelm.nn.gates.gate import ACTIVATIONS, INPUT_DOCS, OPERATIONS, SHARINGS
    from gatelm.nn.gates.presets import PRESET_DOCS
    from gatelm.nn.gates.sites import SITE_DOCS

    axes: dict[str, dict[str, str]] = {
        "site": SITE_DOCS,
        "granularity": {"element": "a score per channel", "head": "a score per head"},
        "sharing": SHARINGS,
        "activation": dict.fromkeys(ACTIVATIONS, ""),
        "operation": dict.fromkeys(OPERATIONS, ""),
        "inputs": INPUT_DOCS,
    }
    presets = {name: text for name, (_, _, text) in PRESET_DOCS.items()}
    if as_json:
        print_json({"axes": axes, "presets": presets})
        return
    for title, values in {**axes, "presets": presets}.items():
        echo(title)
        for name, text in values.items():
            echo(f"  {name:<24} {text}".rstrip())


def _source(path: str, sources: dict[str, str], taken: tuple[str, ...]) -> str:
    """The source of a leaf, or of the shorthand from which the leaf was expanded."""
    leaf = path
    while path:
        if path in sources:
            return sources[path]
        path = path.rpartition(".")[0]
    return "init_from" if leaf.startswith(taken) else "default"


def _taken_over(tree: dict[str, Any]) -> tuple[str, ...]:
    """Config paths that a run takes from the trained model it begins from."""
    if not tree.get("init_from"):
        return ()
    data = tree.get("data") or {}
    own_model = "hidden_dim" in (tree.get("model") or {})
    own_tokenizer = data.get("tokenizer") or data.get("prepared")
    return (*(() if own_model else ("model.",)), *(() if own_tokenizer else ("data.tokenizer.",)))


def _text(value: Any) -> str:
    return "(absent)" if value is ... else json.dumps(value, ensure_ascii=False)
