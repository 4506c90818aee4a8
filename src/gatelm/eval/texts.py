"""The documents to evaluate on: a packaged corpus's held-out ones, or all of a file or folder."""

from __future__ import annotations

from gatelm.config import ConfigError
from gatelm.data.config import CorpusConfig
from gatelm.data.corpora import CORPORA
from gatelm.data.holdout import split_documents
from gatelm.data.readers import corpus_files, read_documents


def read_texts(
    source: str, *, text_field: str = "text", option: str = "--data", trainer: str = "training"
) -> tuple[list[str], str]:
    """The documents, and in words which ones they are.

    Args:
        option: the option that named the source, for error messages.
        trainer: who holds out documents of a packaged corpus, in words.

    Raises:
        ConfigError: when there is no such text, or it cannot be read.
    """
    try:
        cfg = CorpusConfig(source=source, text_field=text_field)
        documents = read_documents(cfg, corpus_files(cfg))
        if source in CORPORA:
            split = split_documents(documents, cfg.holdout_every)
            texts = [document.text for name, document in split if name == "validation"]
            which = f"every {cfg.holdout_every}th document, which {trainer} holds out"
        else:
            texts = [document.text for document in documents]
            which = "all documents"
    except ConfigError as error:
        raise ConfigError(str(error).replace("data.source", option)) from None
    if not any(text.strip() for text in texts):
        raise ConfigError(f"{option} {source}: no text in it")
    return texts, which
