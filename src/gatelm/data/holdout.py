"""The documents that are held out for validation, on which a model is evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from gatelm.config import ConfigError
from gatelm.data.config import CorpusConfig
from gatelm.data.corpora import CORPORA
from gatelm.data.errors import DataError
from gatelm.data.readers import Document, corpus_files, read_documents

Split = Literal["train", "validation"]


def split_documents(
    documents: Iterable[Document], holdout_every: int
) -> Iterator[tuple[Split, Document]]:
    """Yield documents with their split; every n-th document is held out.

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


def _with_text(document: Document) -> Document:
    if document.ids is not None:
        raise DataError(f"{document.name}: holds ids of tokens, and here a text is needed")
    return document


def read_texts(
    source: str, *, text_field: str = "text", option: str = "--data", trainer: str = "training"
) -> tuple[list[str], str]:
    """Read the documents to evaluate on, and say in words which ones they are.

    They are the held-out documents of a packaged corpus, or all of a file or a folder.

    Args:
        option: the option that named the source, for error messages.
        trainer: who holds out documents of a packaged corpus, in words.

    Raises:
        ConfigError: when there is no such text, or it cannot be read.
    """
    try:
        cfg = CorpusConfig(source=source, text_field=text_field)
        documents = map(_with_text, read_documents(cfg, corpus_files(cfg)))
        if source in CORPORA:
            split = split_documents(documents, cfg.holdout_every)
            texts = [document.text for name, document in split if name == "validation"]
            which = f"every {cfg.holdout_every}th document, which {trainer} holds out"
        else:
            texts = [document.text for document in documents]
            which = "all documents"
    except ConfigError as error:
        raise ConfigError(str(error).replace("data.source", option)) from None
    if not texts:
        raise ConfigError(f"{option} {source}: no text in it")
    return texts, which


def _too_short(document: Document) -> DataError:
    return DataError(
        f"{document.name}: the corpus is one document, too short to hold a part of it out for "
        "validation"
    )


def _cut_lone(document: Document, holdout_every: int) -> tuple[Document, Document]:
    """Cut a lone document into two parts, for training and for validation."""
    if document.ids is not None:
        cut = len(document.ids) - max(1, len(document.ids) // holdout_every)
        parts = document.ids[:cut], document.ids[cut:]
        if not parts[0]:
            raise _too_short(document)
        head, tail = (Document("", document.name, len(ids), ids) for ids in parts)
        return head, tail
    text = document.text
    target = len(text) - max(1, len(text) // holdout_every)
    cut = text.rfind("\n", len(text) // 2, target) + 1
    if not cut:  # no line end near: cut at a space, or anywhere
        cut = text.rfind(" ", len(text) // 2, target) + 1 or target
    parts = text[:cut], text[cut:]
    if not all(part.strip() for part in parts):
        raise _too_short(document)
    head, tail = (Document(part, document.name, len(part.encode())) for part in parts)
    return head, tail
