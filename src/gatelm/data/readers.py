"""Readers that turn files into documents: txt and code, jsonl, parquet, folders."""

from __future__ import annotations

import codecs
import gzip
import json
import lzma
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from gatelm.data.config import CorpusConfig
from gatelm.data.corpora import PackagedCorpus, resolve_source
from gatelm.data.errors import DataError

MAX_DOCUMENT_BYTES = 4 * 2**20
"""A text file without a separator that is longer than this is cut at a line end into documents."""

IDS = "input_ids"
"""The column of a parquet file that holds ids of tokens in place of text."""

_CHUNK_BYTES = 2**20
_COMPRESSED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}
_TEXT = "txt text md rst tex adoc org csv tsv log srt html htm xml json yaml yml toml ini cfg"
_CODE = (
    "py pyi ipynb c h cc cpp cxx hpp hh cu cuh rs go java kt scala js jsx ts tsx mjs css sh bash "
    "rb php pl pm lua r jl m f90 f swift cs hs ml mli ex exs erl clj lisp el vim sql proto cmake "
    "mk zig nim dart v sv vhd asm s"
)
DEFAULT_EXTENSIONS = frozenset((_TEXT + " " + _CODE + " jsonl ndjson parquet").split())


@dataclass(frozen=True)
class Document:
    """One text and where it came from (for messages), or the ids that a tokenizer made of one."""

    text: str
    name: str
    num_bytes: int
    """Number of UTF-8 bytes of the text, or of ids if there is no text."""
    ids: tuple[int, ...] | None = None


@dataclass
class Skipped:
    """Counts of the records that were read and left out."""

    blank: int = 0
    invalid: int = 0


Value = str | tuple[int, ...]
Record = tuple[Value | None, str, str]
"""A record: its text (None if it has none), its place, and what is wrong with it."""


def corpus_files(cfg: CorpusConfig) -> list[Path]:
    """List the files of a corpus in reading order.

    Raises:
        DataError: for a source that does not exist, or a folder without readable files.
    """
    if cfg.source is None:
        raise DataError("data.source: name a corpus, a file or a folder")
    found = resolve_source(cfg.source)
    if isinstance(found, PackagedCorpus):
        return found.files()
    if found.is_file():
        return [found]
    if (found / "manifest.json").is_file() and any(found.glob("*.bin")):
        raise DataError(
            f"data.source: {found} is a folder of prepared shards; name it as data.prepared"
        )
    wanted = (
        DEFAULT_EXTENSIONS
        if cfg.extensions is None
        else frozenset(ending.lower().lstrip(".") for ending in cfg.extensions)
    )
    files = [path for path in sorted(_walk(found)) if _kind(path) in wanted]
    if not files:
        what = (
            "text, code, jsonl or parquet" if cfg.extensions is None else ", ".join(sorted(wanted))
        )
        raise DataError(f"data.source: the folder {found} holds no {what} files")
    return files


def read_documents(
    cfg: CorpusConfig, files: list[Path], skipped: Skipped | None = None
) -> Iterator[Document]:
    """Yield documents in order up to cfg's limits; `skipped` counts the records left out.

    Raises:
        DataError: for a file that cannot be read or decoded, or a record without a text where
            cfg.invalid is "error", naming it.
    """
    skipped = skipped or Skipped()
    count = total_bytes = 0
    for path in files:
        for value, name, fault in _read_file(path, cfg):
            if value is None:
                if cfg.invalid == "error":
                    raise DataError(f"{name}: {fault}, or skip such records with data.invalid=skip")
                skipped.invalid += 1
                continue
            if not (value.strip() if isinstance(value, str) else value):
                skipped.blank += 1
                continue
            document = _document(value, name, cfg)
            count, total_bytes = count + 1, total_bytes + document.num_bytes
            if cfg.max_bytes is not None and total_bytes > cfg.max_bytes and count > 1:
                return
            yield document
            if count == cfg.max_documents:
                return


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name in ("__pycache__", "node_modules"):
            continue
        if path.is_dir():
            if not path.is_symlink():
                yield from _walk(path)
        elif path.is_file():
            yield path


def _kind(path: Path) -> str:
    """The file's ending without the dot, looking through .gz and .xz."""
    name = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return name.suffix.lower().lstrip(".")


def _read_file(path: Path, cfg: CorpusConfig) -> Iterator[Record]:
    kind = _kind(path)
    try:
        if kind in ("jsonl", "ndjson"):
            yield from _read_jsonl(path, cfg)
        elif kind == "parquet":
            yield from _read_parquet(path, cfg)
        else:
            yield from _read_text(path, cfg)
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 text ({error.reason}, byte 0x{error.object[error.start]:02x}); "
            "convert it, or set data.undecodable to replace"
        ) from None
    except (OSError, EOFError, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path}: cannot be read ({reason})") from None


def _open(path: Path) -> BufferedIOBase:
    return _COMPRESSED.get(path.suffix.lower(), open)(path, "rb")


def _read_text(path: Path, cfg: CorpusConfig) -> Iterator[Record]:
    """Cut text at the separator, or at line ends into pieces of at most MAX_DOCUMENT_BYTES."""
    errors = "replace" if cfg.undecodable == "replace" else "strict"
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors)
    separator, rest, part = cfg.document_separator, "", 0

    def named(text: str) -> Record:
        return text, str(path) if part == 0 else f"{path} (part {part + 1})", ""

    with _open(path) as file:
        final = False
        while not final:
            chunk = file.read(_CHUNK_BYTES)
            final = not chunk
            rest += decoder.decode(chunk, final)
            if separator:
                *pieces, rest = rest.split(separator)
            else:
                pieces, rest = _cut_long(rest)
            for piece in pieces:
                yield named(piece)
                part += 1
    yield named(rest)


def _cut_long(text: str) -> tuple[list[str], str]:
    """Cut full pieces off a long text, and return them and the rest."""
    pieces = []
    while len(text) > MAX_DOCUMENT_BYTES:
        cut = text.rfind("\n", MAX_DOCUMENT_BYTES // 2, MAX_DOCUMENT_BYTES) + 1
        cut = cut or MAX_DOCUMENT_BYTES
        pieces.append(text[:cut])
        text = text[cut:]
    return pieces, text


def _read_jsonl(path: Path, cfg: CorpusConfig) -> Iterator[Record]:
    errors = "replace" if cfg.undecodable == "replace" else "strict"
    with _open(path) as file:
        for number, raw in enumerate(file, 1):
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8", errors).strip()
            if not line:
                continue
            text, fault = _json_text(line, cfg.text_field)
            yield text, f"{path}, line {number}", fault


def _json_text(line: str, field: str) -> tuple[str | None, str]:
    """Return the text of a JSON line, or None and what is wrong with the line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return None, f"not valid JSON ({error}); correct it"
    if not isinstance(record, dict) or field not in record:
        keys = ", ".join(map(str, record)) if isinstance(record, dict) else "no keys"
        return None, f"no key {field!r} (it has {keys:.200}); set data.text_field"
    if not isinstance(record[field], str):
        return None, f"the value of {field!r} is no text{_MEND}"
    return record[field], ""


_MEND = "; correct it, set data.text_field"


def _read_parquet(path: Path, cfg: CorpusConfig) -> Iterator[Record]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(
            f"{path}: reading parquet needs pyarrow; install it: pip install 'gatelm[data]'"
        ) from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            column = next((c for c in (cfg.text_field, IDS) if c in columns), None)
            if column is None:
                raise DataError(
                    f"{path}: no column {cfg.text_field!r} (it has {', '.join(columns):.200}); "
                    "set data.text_field"
                )
            row = 0
            for batch in file.iter_batches(batch_size=256, columns=[column]):
                for value in batch.column(0):
                    row += 1
                    fault = f"the column {column!r} holds {batch.schema.types[0]}"
                    fault += " and here null, " if value.as_py() is None else ", "
                    fault += f"not text{_MEND}"
                    yield _text_or_ids(value.as_py()), f"{path}, row {row}", fault
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"{path}: not a readable parquet file ({error})") from None


def _text_or_ids(value: Any) -> Value | None:
    if isinstance(value, list) and all(isinstance(i, int) and i >= 0 for i in value):
        return tuple(value)
    return value if isinstance(value, str) else None


def _document(value: Value, name: str, cfg: CorpusConfig) -> Document:
    if isinstance(value, str):
        text, num_bytes = _checked(value, name, cfg)
        return Document(text, name, num_bytes)
    return Document("", name, len(value), value)


def _checked(text: str, name: str, cfg: CorpusConfig) -> tuple[str, int]:
    """Return the text and its UTF-8 length; JSON may hold lone surrogates, which UTF-8 cannot."""
    try:
        return text, len(text.encode())
    except UnicodeEncodeError:
        if cfg.undecodable == "error":
            raise DataError(
                f"{name}: holds half of a surrogate pair, which is no character; correct it, or "
                "set data.undecodable to replace"
            ) from None
        clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return clean, len(clean.encode())
