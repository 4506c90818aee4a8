"""Which options were typed: what nothing would use is refused, not ignored."""

from __future__ import annotations

from collections.abc import Iterator

import typer


def typed(context: typer.Context) -> Iterator[tuple[str, str]]:
    """Parameter name and spelling of each option that stands in the command line."""
    for option in context.command.params:
        name = option.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            yield name, option.opts[0]
