"""Which documents are held out for validation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from gatelm.data.errors import DataError
from gatelm.data.readers import Document

Split = Literal["train", "validation"]


def split_documents(
    documents: Iterable[Document], holdout_every: int
) -> Iterator[tuple[Split, Document]]:
    """Mark every n-th document as held out.

    With fewer than n documents the last is held out; a lone document is cut in two at a line end
    (or space), the last 1/n held out.

    Raises:
        DataError: when there is no document, or a lone one too short to cut.
    """
    last: Document | None = None
    held_out = False
    index = -1
    for index, document in enumerate(documents):
        if last is not None:
            split = "validation" if index % holdout_every == 0 else "train"
            held_out = held_out or split == "validation"
            yield split, last
        last = document
    if last is None:
        raise DataError("data.source: the corpus is empty: no document with any text")
    if index > 0:
        ends_group = (index + 1) % holdout_every == 0
        yield ("train" if held_out and not ends_group else "validation"), last
        return
    head, tail = _cut_lone(last, holdout_every)
    yield "train", head
    yield "validation", tail


def _cut_lone(document: Document, holdout_every: int) -> tuple[Document, Document]:
    text = document.text
    target = len(text) - max(1, len(text) // holdout_every)
    cut = text.rfind("\n", len(text) // 2, target) + 1
    if not cut:  # no line end near: cut at a space, or anywhere
        cut = text.rfind(" ", len(text) // 2, target) + 1 or target
    parts = text[:cut], text[cut:]
    if not all(part.strip() for part in parts):
        raise DataError(
            f"{document.name}: the corpus is one document, too short to hold a part of it out "
            "for validation"
        )
    head, tail = (Document(part, document.name, len(part.encode())) for part in parts)
    return head, tail
