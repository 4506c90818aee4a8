"""A console of rich for text that others wrote."""

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
        """Escape control characters in the segments to print, except rich's own."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


def wide_console(columns: int = 100) -> Console:
    """A console on stdout. Tables may be `columns` wide even where stdout is no terminal."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=max(plain.width, columns))
