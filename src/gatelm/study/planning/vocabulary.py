"""The vocabulary of a run's data, before the data is prepared."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from gatelm.data.config import (
    BpeTokenizerConfig,
    ByteTokenizerConfig,
    DataConfig,
    FileTokenizerConfig,
    TextDataConfig,
)
from gatelm.data.shards import read_manifest
from gatelm.data.source import build_source
from gatelm.data.tokenizer import byte_tokenizer, load_tokenizer
from gatelm.nn.model import ModelConfig
from gatelm.train.config import RunConfig


def sized(config: RunConfig) -> ModelConfig:
    """Return the run's model with a vocabulary, the data's if the config leaves it open."""
    if config.model.vocab_size is not None:
        return config.model
    # frozen models hash, which pyright does not see
    vocab_size = expected_vocab_size(config.data)  # pyright: ignore[reportArgumentType]
    return config.model.replace(vocab_size=vocab_size)


@cache
def expected_vocab_size(data: DataConfig) -> int:
    """Return the size of the data's vocabulary; for an untrained BPE, the size asked for."""
    if not isinstance(data, TextDataConfig):
        return build_source(data, 0).vocab_size
    if data.prepared is not None:
        return read_manifest(Path(data.prepared).expanduser()).vocab_size
    match data.tokenizer:
        case ByteTokenizerConfig():
            return byte_tokenizer().vocab_size
        case BpeTokenizerConfig(vocab_size=vocab_size):
            return vocab_size
        case FileTokenizerConfig(path=path, bos=bos, eos=eos):
            return load_tokenizer(path, bos, eos).vocab_size
