"""What commands print for programs and for people."""

from __future__ import annotations

import re
from typing import Any

import typer

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\r(?!\n)")


def printable(text: str) -> str:
    """The text with control characters as \\xNN, but for tabs and line ends.

    Names in files of others could otherwise move the cursor, retitle the terminal, or worse.
    """
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text that may hold names of others, on stdout or stderr."""
    typer.echo(printable(str(text)), err=err, nl=nl)


def print_json(value: Any, *, indent: int | None = 1) -> None:
    """Print plain data as JSON. JSON has no NaN: non-finite numbers become null."""
    import json

    from gatelm.io.files import finite

    typer.echo(json.dumps(finite(value), indent=indent, allow_nan=False))
