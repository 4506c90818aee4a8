"""A thin wrapper over `tokenizers`: byte-level BPE, bytes, or any tokenizer.json."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers
from jaxtyping import Int64
from tokenizers import decoders, models, pre_tokenizers, trainers

from gatelm.config import Config
from gatelm.data.errors import DataError

BOS, EOS = "<|bos|>", "<|eos|>"
MAX_WORD_BYTES = 256
"""Largest bytes of a word in training a BPE, whose time is quadratic in a word's length."""
_KNOWN_BOS = (BOS, "<s>", "<bos>", "<|begin_of_text|>", "<|endoftext|>", "[BOS]")
_KNOWN_EOS = (EOS, "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "[EOS]")


def _byte_symbols() -> list[str]:
    """The printable character that stands for each byte 0..255 in byte-level vocabularies."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in symbols)
    symbols.update({byte: chr(256 + offset) for offset, byte in enumerate(others)})
    return [symbols[byte] for byte in range(256)]


_SYMBOLS = _byte_symbols()
_BYTES = {symbol: byte for byte, symbol in enumerate(_SYMBOLS)}


class Coverage(Config):
    """How much of a text a tokenizer can express: counts of what it drops or does not know."""

    characters: int = 0
    """Characters of the text; white space is left out where the tokenizer splits words at it."""
    dropped_characters: int = 0
    tokens: int = 0
    unknown_tokens: int = 0

    def __add__(self, other: Coverage) -> Coverage:
        added = {name: value + getattr(other, name) for name, value in self.tree().items()}
        return Coverage(**added)

    @property
    def dropped(self) -> float:
        """Share of the characters that no token stands for."""
        return self.dropped_characters / max(self.characters, 1)

    @property
    def unknown(self) -> float:
        """Share of the tokens that are the unknown token."""
        return self.unknown_tokens / max(self.tokens, 1)

    def __str__(self) -> str:
        return (
            f"the tokenizer drops {self.dropped_characters:,} of {self.characters:,} characters "
            f"({self.dropped:.2%}), and {self.unknown_tokens:,} of {self.tokens:,} tokens "
            f"({self.unknown:.2%}) are its unknown token"
        )

    def check(self, limit: float, where: str, setting: str) -> None:
        """Warn above zero, and refuse above a limit, which `setting` names.

        Raises:
            DataError: when the share of dropped characters or of unknown tokens is above `limit`.
        """
        largest = max(self.dropped, self.unknown)
        if largest > limit:
            raise DataError(
                f"{where}: {self}, more than {limit:g}; use a tokenizer that can express the text, "
                f"such as one with byte fallback, or raise {setting}"
            )
        if largest:
            warnings.warn(f"{where}: {self}", stacklevel=2)


def coverage(inner: tokenizers.Tokenizer, texts: Iterable[str]) -> Coverage:
    """Count what a tokenizer of the `tokenizers` library loses of some texts."""
    if _expresses_every_byte(inner):
        return Coverage()
    before = inner.pre_tokenizer
    splits = before is not None and not any(
        " " in piece for piece, _ in before.pre_tokenize_str("a b") if piece not in ("a", "b")
    )
    unknown = inner.token_to_id(json.loads(inner.to_str())["model"].get("unk_token") or "")
    if unknown is None:
        unknown = json.loads(inner.to_str())["model"].get("unk_id")
    total = Coverage()
    for text in texts:
        encoding = inner.encode(text, add_special_tokens=False)
        # pieces without a token shift the offsets, so their union is a length, not a place
        covered = np.zeros(len(text) + 1, dtype=np.int64)
        for start, stop in encoding.offsets:
            covered[start] += 1
            covered[stop] -= 1
        characters = sum(not c.isspace() for c in text) if splits else len(text)
        kept = int((np.cumsum(covered) > 0).sum())
        total += Coverage(
            characters=characters,
            dropped_characters=max(0, characters - kept),
            tokens=len(encoding.ids),
            unknown_tokens=encoding.ids.count(unknown),
        )
    return total


def _expresses_every_byte(inner: tokenizers.Tokenizer) -> bool:
    """Whether a tokenizer has tokens for any text, by all 256 byte symbols or byte fallback."""
    vocab = inner.get_vocab(with_added_tokens=False)
    if getattr(inner.model, "byte_fallback", False):
        return all(f"<0x{byte:02X}>" in vocab for byte in range(256))
    return "ByteLevel" in repr(inner.pre_tokenizer) and all(s in vocab for s in _SYMBOLS)


class Tokenizer:
    """A tokenizer: text to ids and back, with the ids of BOS and EOS.

    Special tokens are never read from text: a literal "<|bos|>" is encoded as its characters.
    """

    def __init__(self, inner: tokenizers.Tokenizer, bos: str, eos: str) -> None:
        inner.no_truncation()
        inner.no_padding()
        inner.encode_special_tokens = True
        self._inner = inner
        self.bos, self.eos = bos, eos
        self.bos_id, self.eos_id = self._id(bos), self._id(eos)
        self._is_bytes = [inner.id_to_token(byte) for byte in range(256)] == _SYMBOLS and (
            inner.get_vocab_size() - 256 == len({bos, eos})
        )

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary: one more than the largest id."""
        return max(self.token_ids) + 1

    @cached_property
    def token_ids(self) -> frozenset[int]:
        """Set of all ids that have a token."""
        return frozenset(self._inner.get_vocab(with_added_tokens=True).values())

    def unused_ids(self, vocab_size: int) -> list[int]:
        """See the function `unused_ids`."""
        return unused_ids(self.token_ids, vocab_size)

    @cached_property
    def fingerprint(self) -> str:
        """First 16 hex digits of the SHA-256 of everything that decides the ids."""
        settings = json.dumps([self.bos, self.eos])
        return hashlib.sha256((self.to_json() + settings).encode()).hexdigest()[:16]

    def encode(self, text: str) -> Int64[np.ndarray, " n"]:
        """Encode a text into ids, without BOS or EOS."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Int64[np.ndarray, " _"]]:
        """Encode several texts in parallel."""
        if self._is_bytes:
            return [np.frombuffer(t.encode(), dtype=np.uint8).astype(np.int64) for t in texts]
        encodings = self._inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(encoding.ids, dtype=np.int64) for encoding in encodings]

    def coverage(self, texts: Iterable[str]) -> Coverage:
        """Count what the tokenizer loses of some texts."""
        return coverage(self._inner, texts)

    def decode(self, ids: Iterable[int | np.integer]) -> str:
        """Decode ids into text, leaving out special tokens."""
        return self._inner.decode([int(i) for i in ids], skip_special_tokens=True)

    def display(self, ids: Iterable[int | np.integer]) -> list[str]:
        """One readable string per id: bytes that are no character alone are written as \\xNN."""
        return [self._display(int(i)) for i in ids]

    def to_json(self) -> str:
        """Return the text of a tokenizer.json."""
        return self._inner.to_str(pretty=False)

    def save(self, path: str | Path) -> None:
        """Write tokenizer.json."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    def _id(self, token: str) -> int:
        found = self._inner.token_to_id(token)
        if found is None:
            raise DataError(f"the tokenizer has no token {token!r}; name one it has as bos or eos")
        return found

    def _display(self, token_id: int) -> str:
        piece = self._inner.id_to_token(token_id)
        if piece is None:
            return f"<{token_id}>"
        if token_id in (self.bos_id, self.eos_id):
            return piece
        if all(symbol in _BYTES for symbol in piece):
            raw = bytes(_BYTES[symbol] for symbol in piece)
            try:
                return raw.decode("utf-8")
            except UnicodeDecodeError:
                return "".join(f"\\x{byte:02x}" for byte in raw)
        return piece.replace("\u2581", " ")


def unused_ids(token_ids: Iterable[int], vocab_size: int) -> list[int]:
    """Find the rows of a vocabulary without a token of a tokenizer, such as padding for hardware.

    A model is never to choose them: they have no text.
    """
    return sorted(set(range(vocab_size)).difference(token_ids))


def byte_tokenizer() -> Tokenizer:
    """Make the tokenizer whose ids are bytes; 256 is BOS, 257 is EOS."""
    vocab = {symbol: byte for byte, symbol in enumerate(_SYMBOLS)}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([BOS, EOS])
    return Tokenizer(inner, BOS, EOS)


def train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE of at most `vocab_size` entries, BOS = 0 and EOS = 1 among them."""
    inner = tokenizers.Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces = pre_tokenizers.Split(tokenizers.Regex(f".{{{MAX_WORD_BYTES}}}"), "isolated")
    inner.pre_tokenizer = pre_tokenizers.Sequence([words, pieces])
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=sorted(_SYMBOLS),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    inner.pre_tokenizer = words
    return Tokenizer(inner, BOS, EOS)


def load_tokenizer(path: str | Path, bos: str | None = None, eos: str | None = None) -> Tokenizer:
    """Load a tokenizer.json; BOS and EOS by name or usual names, each in place of the other.

    Raises:
        DataError: for a file that is missing or no tokenizer, or when no BOS or EOS is found.
    """
    path = Path(path)
    try:
        inner = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: the tokenizer cannot be read ({error.strerror})") from None
    except Exception as error:  # the library raises bare Exception for malformed files
        raise DataError(f"{path}: not a tokenizer.json ({' '.join(str(error).split())})") from None
    vocab = inner.get_vocab(with_added_tokens=True)
    for name, token in (("bos", bos), ("eos", eos)):
        if token is not None and token not in vocab:
            raise DataError(f"{path}: {name} {token!r} is not in the vocabulary")
    bos = bos or next((token for token in _KNOWN_BOS if token in vocab), None)
    eos = eos or next((token for token in _KNOWN_EOS if token in vocab), None)
    if bos is None and eos is None:
        raise DataError(
            f"{path}: no usual BOS or EOS token in the vocabulary; name them with "
            "data.tokenizer.bos and data.tokenizer.eos"
        )
    return Tokenizer(inner, bos or eos or "", eos or bos or "")
