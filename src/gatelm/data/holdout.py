"""Which documents are held out for validation, and so are what a model is evaluated on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class EvaluationTexts:
    """The documents of a source that a model may be evaluated on."""

    texts: list[str]
    holdout_every: int | None
    """Every n-th document of the source is one of `texts`; None: all documents are."""

    def which(self, training: str = "training") -> str:
        """Which documents the texts are, in words; `training` names what holds them out."""
        if self.holdout_every is None:
            return "all documents"
        return f"every {self.holdout_every}th document, which {training} holds out"


def evaluation_texts(source: str, *, option: str, text_field: str = "text") -> EvaluationTexts:
    """The held-out documents of a packaged corpus, or all documents of a file or a folder.

    option: the option of the command that names the source, for messages.

    Raises:
        ConfigError: when there is no such text, or it cannot be read.
    """
    cfg = CorpusConfig(source=source, text_field=text_field)
    every = cfg.holdout_every if source in CORPORA else None
    try:
        documents = read_documents(cfg, corpus_files(cfg))
        if every is not None:
            split = split_documents(documents, every)
            documents = (document for name, document in split if name == "validation")
        texts = [document.text for document in documents]
    except ConfigError as error:
        raise ConfigError(str(error).replace("data.source", option)) from None
    if not texts:
        raise ConfigError(f"{option} {source}: no text in it")
    return EvaluationTexts(texts, every)


def _cut_lone(document: Document, holdout_every: int) -> tuple[Document, Document]:
    """The two parts of a lone document, for training and for validation."""
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
