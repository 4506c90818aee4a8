"""The console of rich, for text that others wrote."""

from __future__ import annotations

from collections.abc import Iterable

from rich import console
from rich.segment import Segment

from gatelm.cli.output import printable


class Console(console.Console):
    """Prints as rich does, and writes control characters in texts as escapes."""

    def render(
        self, renderable: console.RenderableType, options: console.ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The segments to print; those of rich itself, which move the cursor, stay."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


def wide_console(columns: int = 100) -> Console:
    """A console on stdout. Where that is no terminal, tables may be at least `columns` wide."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=max(plain.width, columns))
