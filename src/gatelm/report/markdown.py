"""Markdown from plain values: what a committed record of a study is written in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

Align = Literal["left", "right"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], align: Sequence[Align] = ()) -> str:
    """Make a pipe table; columns beyond `align` are aligned to the right."""
    sides = [*align, *["right"] * len(head)][: len(head)]
    rule = [{"left": ":--", "right": "--:"}[side] for side in sides]
    return "\n".join("| " + " | ".join(map(cell, row)) + " |" for row in (head, rule, *rows))


def cell(text: str) -> str:
    """Make a cell's text one line, in which no column ends."""
    return plain(" ".join(text.split())).replace("|", "\\|")


def plain(text: str) -> str:
    """Escape a text so that no HTML begins in it."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def code(text: str) -> str:
    """Make a fenced code block."""
    return f"```\n{text.strip()}\n```"


def folded(summary: str, blocks: Sequence[str]) -> str:
    """Make a collapsed section of blocks; empty without blocks."""
    kept = [block for block in blocks if block]
    if not kept:
        return ""
    return "\n\n".join([f"<details><summary>{summary}</summary>", *kept, "</details>"])


def section(text: str, title: str) -> str | None:
    """Return the section `## title` of a document, with its heading.

    What stands in a fenced block is no heading. None where there is no such section.
    """
    kept: list[str] | None = None
    fenced = False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        if not fenced and re.match(r"##? ", line):
            if kept is not None:
                break
            if line.strip() == f"## {title}":
                kept = []
        if kept is not None:
            kept.append(line)
    return None if kept is None else "\n".join(kept).rstrip()
