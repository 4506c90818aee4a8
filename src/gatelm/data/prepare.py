"""A corpus to a folder of shards: atomic, once for the same inputs, in bounded memory."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import tokenizers

from gatelm.data.config import (
    BpeTokenizerConfig,
    ByteTokenizerConfig,
    CorpusConfig,
    FileTokenizerConfig,
)
from gatelm.data.errors import DataError
from gatelm.data.holdout import Split, split_documents
from gatelm.data.readers import Document, Skipped, corpus_files, read_documents
from gatelm.data.shards import (
    FORMAT,
    MANIFEST,
    TOKENIZER,
    LeftOut,
    Manifest,
    SplitWriter,
    read_manifest,
    write_file,
)
from gatelm.data.tokenizer import Coverage, Tokenizer, byte_tokenizer, load_tokenizer, train_bpe
from gatelm.io.files import sha256, sync
from gatelm.io.folders import whole_folder
from gatelm.io.locks import locked

_HASHED_BYTES = 2**28  # inputs up to this are told apart by content, larger ones by size and time
_ENCODE_BYTES = 2**21
_TRAIN_PIECE = 2**18


@dataclass(frozen=True)
class PrepareProgress:
    """How far a preparation is; `num_bytes` counts text, `total_bytes` is the files' size."""

    phase: Literal["waiting", "tokenizer", "tokens"]
    num_documents: int
    num_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class Preparation:
    """Where the shards are, and whether they were there already."""

    folder: Path
    manifest: Manifest
    status: Literal["written", "found"]


Report = Callable[[PrepareProgress], None]


def default_cache() -> Path:
    """$GATELM_CACHE, else `gatelm` in the user's cache folder."""
    own = os.environ.get("GATELM_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gatelm"


def prepare(
    cfg: CorpusConfig,
    folder: Path | None = None,
    *,
    cache: Path | None = None,
    report: Report | None = None,
) -> Preparation:
    """Write the corpus's shards to `folder`, or to a folder of the cache named by the inputs.

    The work is done in a temporary folder that is renamed at the end; of several processes that
    prepare the same, one works and the others wait for it.

    Raises:
        DataError: for missing, empty or unreadable input, a full disk, or a `folder` that holds
            something else. Nothing half-written stays behind.
    """

    def waits(holder: str) -> None:
        if report:
            report(PrepareProgress("waiting", 0, 0, 0))

    files = corpus_files(cfg)
    key = input_key(cfg, files)
    target = folder or (cache or default_cache()) / f"{_slug(cfg.source or '')}-{key}"
    found = _existing(target, key)
    if found:
        return found
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.parent / f".{target.name}.lock", when_held=waits):
            found = _existing(target, key)
            return found or _write_whole(cfg, files, key, target, report)
    except OSError as error:
        raise _write_error(target, error) from None


def input_key(cfg: CorpusConfig, files: list[Path]) -> str:
    """16 hex digits that name the inputs: settings, files, tokenizer."""
    settings = {
        name: value
        for name, value in cfg.model_dump(
            mode="json", include=set(CorpusConfig.model_fields)
        ).items()
        if name not in ("source", "tokenizer", "max_lost")
    }
    tokenizer: list[str] = [cfg.tokenizer.content_hash(), tokenizers.__version__]
    if isinstance(cfg.tokenizer, FileTokenizerConfig):
        loaded = load_tokenizer(cfg.tokenizer.path, cfg.tokenizer.bos, cfg.tokenizer.eos)
        tokenizer = [loaded.fingerprint]
    try:
        by_content = sum(path.stat().st_size for path in files) <= _HASHED_BYTES
        stamps = [_stamp(path, by_content) for path in files]
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from None
    canonical = json.dumps([FORMAT, settings, tokenizer, stamps], sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _stamp(path: Path, by_content: bool) -> list[str | int]:
    if not by_content:
        info = path.stat()
        return [path.name, info.st_size, info.st_mtime_ns]
    return [path.name, sha256(path)]


def _existing(target: Path, key: str) -> Preparation | None:
    if not target.exists():
        return None
    if not (target / MANIFEST).is_file():
        if target.is_dir() and not any(target.iterdir()):
            return None
        raise DataError(f"{target}: exists and is no prepared corpus; choose another folder")
    manifest = read_manifest(target)
    if manifest.input_key != key:
        raise DataError(
            f"{target}: holds a corpus prepared from other inputs or settings; "
            "choose another folder or delete this one"
        )
    return Preparation(target, manifest, "found")


def _write_whole(
    cfg: CorpusConfig, files: list[Path], key: str, target: Path, report: Report | None
) -> Preparation:
    with whole_folder(target) as unfinished:
        manifest = _write(cfg, files, key, unfinished, report)
    return Preparation(target, manifest, "written")


def _write(
    cfg: CorpusConfig, files: list[Path], key: str, folder: Path, report: Report | None
) -> Manifest:
    tokenizer = _make_tokenizer(cfg, _reported(cfg, files, "tokenizer", report))
    dtype = "uint16" if tokenizer.vocab_size <= 2**16 else "uint32"
    writers: dict[Split, SplitWriter] = {}
    skipped, coverage = Skipped(), Coverage()
    try:
        for split in ("train", "validation"):
            writers[split] = SplitWriter(folder, split, dtype, tokenizer.bos_id)
        for batch in _batches(_reported(cfg, files, "tokens", report, skipped)):
            texts = [document.text for _, document in batch]
            coverage += tokenizer.coverage(texts)
            for (split, document), ids in zip(batch, tokenizer.encode_batch(texts), strict=True):
                if document.ids is None:
                    writers[split].add(ids, document.num_bytes)
                else:
                    writers[split].add(*_given_ids(document, tokenizer))
        coverage.check(cfg.max_lost, cfg.source or "", "data.max_lost")
        train, validation = writers["train"].close(), writers["validation"].close()
    finally:
        for writer in writers.values():
            writer.abandon()
    manifest = Manifest(
        format=FORMAT,
        source=cfg.source or "",
        input_key=key,
        dtype=dtype,
        bos=tokenizer.bos,
        eos=tokenizer.eos,
        vocab_size=tokenizer.vocab_size,
        tokenizer=write_file(folder / TOKENIZER, tokenizer.to_json().encode()),
        train=train,
        validation=validation,
        left_out=LeftOut(blank=skipped.blank, invalid=skipped.invalid),
        coverage=coverage,
        fingerprint="",
    )
    manifest = manifest.replace(fingerprint=manifest.compute_fingerprint())
    write_file(folder / MANIFEST, (json.dumps(manifest.tree(), indent=1) + "\n").encode())
    sync(folder)
    return manifest


def _make_tokenizer(cfg: CorpusConfig, documents: Iterable[tuple[Split, Document]]) -> Tokenizer:
    match cfg.tokenizer:
        case ByteTokenizerConfig():
            return byte_tokenizer()
        case FileTokenizerConfig(path=path, bos=bos, eos=eos):
            return load_tokenizer(path, bos, eos)
        case BpeTokenizerConfig(vocab_size=vocab_size):
            texts = (_text(document) for split, document in documents if split == "train")
            return train_bpe((piece for text in texts for piece in _pieces(text)), vocab_size)


def _text(document: Document) -> str:
    if document.ids is not None:
        raise DataError(
            f"{document.name}: holds ids of tokens; name the tokenizer.json that made them with "
            "data.tokenizer"
        )
    return document.text


def _given_ids(document: Document, tokenizer: Tokenizer) -> tuple[np.ndarray, int]:
    """A document's own ids without BOS and EOS around them, and the bytes of their text."""
    ids = list(document.ids or ())
    ids = ids[1:] if ids[:1] == [tokenizer.bos_id] else ids
    ids = ids[:-1] if ids[-1:] == [tokenizer.eos_id] else ids
    if max(ids, default=0) >= tokenizer.vocab_size:
        raise DataError(
            f"{document.name}: id {max(ids)} is outside the tokenizer's {tokenizer.vocab_size:,} "
            "ids; name the tokenizer.json that made them with data.tokenizer"
        )
    return np.array(ids, dtype=np.int64), len(tokenizer.decode(ids).encode())


def _pieces(text: str) -> Iterator[str]:
    """The trainer buffers some hundred strings, so long ones are cut to bound its memory."""
    for start in range(0, len(text), _TRAIN_PIECE):
        yield text[start : start + _TRAIN_PIECE]


def _reported(
    cfg: CorpusConfig,
    files: list[Path],
    phase: Literal["tokenizer", "tokens"],
    report: Report | None,
    skipped: Skipped | None = None,
) -> Iterator[tuple[Split, Document]]:
    total = sum(path.stat().st_size for path in files)
    count = num_bytes = 0
    documents = read_documents(cfg, files, skipped)
    for split, document in split_documents(documents, cfg.holdout_every):
        yield split, document
        count, num_bytes = count + 1, num_bytes + document.num_bytes
        if report:
            report(PrepareProgress(phase, count, num_bytes, max(total, num_bytes)))


def _batches(
    documents: Iterable[tuple[Split, Document]],
) -> Iterator[list[tuple[Split, Document]]]:
    batch, num_bytes = [], 0
    for item in documents:
        batch.append(item)
        num_bytes += item[1].num_bytes
        if num_bytes >= _ENCODE_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def _write_error(target: Path, error: OSError) -> DataError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(
            f"{target}: the disk is full ({error.strerror}); free some space or choose another "
            "disk with data.cache"
        )
    return DataError(f"{target}: cannot be written ({error.strerror or error})")


def _slug(source: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(source).name).strip("-.") or "corpus"
