"""Prepared corpora on disk: token shards, document starts, a tokenizer, and a manifest.

manifest.json             sizes, SHA-256 of every file, and the fingerprint of them all
tokenizer.json
train-00000.bin ...       uint16 or uint32 tokens, BOS before every document
train-documents.bin       int64: where each document's BOS stands
validation-...            the held-out documents, likewise
"""

from __future__ import annotations

import hashlib
import json
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int64

from gatelm.config import Config, ConfigError
from gatelm.data.errors import DataError
from gatelm.data.tokenizer import Coverage, Tokenizer, load_tokenizer
from gatelm.io.files import flush, sha256

FORMAT = 1
MANIFEST, TOKENIZER = "manifest.json", "tokenizer.json"
SHARD_TOKENS = 2**26
CHECKSUM_LIMIT_BYTES = 2**31
"""Corpora up to this size are checked in full when opened; larger ones by file sizes only."""

Dtype = Literal["uint16", "uint32"]


_NO_CONTENT = {"source", "input_key", "fingerprint", "left_out", "coverage"}


class FileInfo(Config):
    """One file of a prepared corpus."""

    file: str
    num_bytes: int
    sha256: str


class SplitInfo(Config):
    """The training or the held-out documents."""

    num_documents: int
    num_tokens: int
    text_bytes: int
    shards: tuple[FileInfo, ...]
    document_starts: FileInfo

    def files(self) -> tuple[FileInfo, ...]:
        """All files of the split."""
        return (*self.shards, self.document_starts)


class LeftOut(Config):
    """Numbers of records that are no documents of the corpus."""

    blank: int = 0
    invalid: int = 0


class Manifest(Config):
    """Manifest of a prepared folder: everything that the folder holds."""

    format: int
    source: str
    input_key: str
    """Hash of the inputs of the preparation, by which a second preparation finds the folder."""
    dtype: Dtype
    bos: str
    eos: str
    vocab_size: int
    tokenizer: FileInfo
    train: SplitInfo
    validation: SplitInfo
    left_out: LeftOut = LeftOut()
    coverage: Coverage = Coverage()
    fingerprint: str
    """First 16 hex digits of the SHA-256 of the content: tokens, documents, tokenizer."""

    def compute_fingerprint(self) -> str:
        """Compute the fingerprint of the content that the manifest lists, without its origin."""
        content = self.model_dump(mode="json", exclude=_NO_CONTENT)
        canonical = json.dumps(content, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


class SplitWriter:
    """Appends documents to the shards of one split."""

    def __init__(self, folder: Path, split: str, dtype: Dtype, bos_id: int) -> None:
        self._folder, self._split = folder, split
        self._dtype = np.dtype(dtype).newbyteorder("<")
        self._bos = np.array([bos_id], dtype=self._dtype).tobytes()
        self._starts = array("q")
        self._num_tokens = self._text_bytes = self._tokens_in_shard = 0
        self._shards: list[FileInfo] = []
        self._file = _HashedFile(self._next_path())

    def add(self, ids: Int64[np.ndarray, " n"], text_bytes: int) -> None:
        """Append one document's ids, which have no BOS."""
        if self._tokens_in_shard >= SHARD_TOKENS:
            self._shards.append(self._file.close())
            self._file, self._tokens_in_shard = _HashedFile(self._next_path()), 0
        self._starts.append(self._num_tokens)
        self._file.write(self._bos + ids.astype(self._dtype).tobytes())
        self._num_tokens += len(ids) + 1
        self._tokens_in_shard += len(ids) + 1
        self._text_bytes += text_bytes

    def close(self) -> SplitInfo:
        """Write the document starts; every file is on disk afterwards."""
        self._shards.append(self._file.close())
        starts = np.asarray(self._starts, dtype="<i8").tobytes()
        return SplitInfo(
            num_documents=len(self._starts),
            num_tokens=self._num_tokens,
            text_bytes=self._text_bytes,
            shards=tuple(self._shards),
            document_starts=write_file(self._folder / f"{self._split}-documents.bin", starts),
        )

    def abandon(self) -> None:
        """Close the open file after an error."""
        self._file.abandon()

    def _next_path(self) -> Path:
        return self._folder / f"{self._split}-{len(self._shards):05d}.bin"


def write_file(path: Path, content: bytes) -> FileInfo:
    """Write and fsync one file."""
    file = _HashedFile(path)
    try:
        file.write(content)
        return file.close()
    finally:
        file.abandon()


class _HashedFile:
    def __init__(self, path: Path) -> None:
        self._path, self._hash, self._num_bytes = path, hashlib.sha256(), 0
        self._file = path.open("wb")

    def write(self, content: bytes) -> None:
        self._file.write(content)
        self._hash.update(content)
        self._num_bytes += len(content)

    def close(self) -> FileInfo:
        flush(self._file)
        self._file.close()
        return FileInfo(
            file=self._path.name, num_bytes=self._num_bytes, sha256=self._hash.hexdigest()
        )

    def abandon(self) -> None:
        if not self._file.closed:
            try:
                self._file.close()
            except OSError:  # the buffered rest does not fit on the disk either
                self._file.raw.close()


class TokenStream:
    """The documents of one split as one memory-mapped stream of tokens."""

    def __init__(self, folder: Path, info: SplitInfo, dtype: Dtype) -> None:
        stored = np.dtype(dtype).newbyteorder("<")
        self._shards = [np.memmap(folder / s.file, dtype=stored, mode="r") for s in info.shards]
        self._ends = np.cumsum([len(shard) for shard in self._shards])
        self.num_tokens = info.num_tokens
        self.text_bytes = info.text_bytes
        self.document_starts = np.fromfile(folder / info.document_starts.file, dtype="<i8")

    @property
    def num_documents(self) -> int:
        """Number of documents in the split."""
        return len(self.document_starts)

    def read(self, start: int | np.integer, stop: int | np.integer) -> Int64[np.ndarray, " t"]:
        """Read the tokens start..stop, across shards; `stop` may lie past the end."""
        stop = min(stop, self.num_tokens)
        first = int(np.searchsorted(self._ends, start, side="right"))
        parts = []
        while start < stop:
            begin = int(self._ends[first - 1]) if first else 0
            part = self._shards[first][start - begin : stop - begin]
            parts.append(part)
            start, first = start + len(part), first + 1
        return np.concatenate(parts, dtype=np.int64) if parts else np.empty(0, np.int64)


@dataclass(frozen=True)
class Prepared:
    """An opened folder of prepared text."""

    folder: Path
    manifest: Manifest
    tokenizer: Tokenizer
    train: TokenStream
    validation: TokenStream


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a prepared folder.

    Raises:
        DataError: when there is none, or it is damaged or of another format.
    """
    path = folder / MANIFEST
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(
            f"{folder}: no prepared corpus here ({MANIFEST}: {error.strerror}); "
            "write one with `gatelm data prepare`"
        ) from None
    except (ValueError, RecursionError):
        raise _damaged(folder, f"{MANIFEST} is not valid JSON") from None
    if isinstance(tree, dict) and tree.get("format") != FORMAT:
        raise DataError(
            f"{folder}: prepared in format {tree.get('format')}, this version reads {FORMAT}; "
            "prepare it again"
        )
    try:
        manifest = Manifest.parse(tree)
    except ConfigError as error:
        raise _damaged(folder, f"{MANIFEST}: {str(error).splitlines()[0]}") from None
    if manifest.compute_fingerprint() != manifest.fingerprint:
        raise _damaged(folder, f"{MANIFEST} does not have the fingerprint it states")
    return manifest


def open_prepared(folder: Path) -> Prepared:
    """Open a prepared folder after checking its files against the manifest.

    Raises:
        DataError: for a missing, truncated or altered file, naming it.
    """
    manifest = read_manifest(folder)
    files = (manifest.tokenizer, *manifest.train.files(), *manifest.validation.files())
    checksums = sum(info.num_bytes for info in files) <= CHECKSUM_LIMIT_BYTES
    for info in files:
        _check_file(folder, info, checksums)
    return Prepared(
        folder=folder,
        manifest=manifest,
        tokenizer=load_tokenizer(folder / TOKENIZER, manifest.bos, manifest.eos),
        train=TokenStream(folder, manifest.train, manifest.dtype),
        validation=TokenStream(folder, manifest.validation, manifest.dtype),
    )


def _check_file(folder: Path, info: FileInfo, checksum: bool) -> None:
    path = folder / info.file
    try:
        size = path.stat().st_size
        if size != info.num_bytes:
            raise _damaged(folder, f"{info.file} has {size} bytes instead of {info.num_bytes}")
        if checksum and sha256(path) != info.sha256:
            raise _damaged(folder, f"{info.file} has other content than was written")
    except OSError as error:
        raise _damaged(folder, f"{info.file} cannot be read, {error.strerror}") from None


def _damaged(folder: Path, what: str) -> DataError:
    return DataError(
        f"{folder}: the prepared corpus is damaged ({what}); delete the folder and prepare it again"
    )
