"""What commands print for programs and for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


def print_json(value: Any, *, indent: int | None = 1) -> None:
    """Print plain data as JSON. JSON has no NaN: non-finite numbers become null."""
    import json

    from gatelm.io.files import finite

    typer.echo(json.dumps(finite(value), indent=indent, allow_nan=False))


def wide_console(columns: int = 100) -> Console:
    """A console on stdout. Where that is no terminal, tables may be at least `columns` wide."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, columns))
