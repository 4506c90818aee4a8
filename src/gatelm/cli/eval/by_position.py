"""The work of `gatelm eval --by-position`: long documents, by length and in windows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from gatelm.cli.options import Opening
from gatelm.cli.progress import Bars
from gatelm.config import ConfigError

if TYPE_CHECKING:
    from gatelm.analysis.probe.protocol import Probe
    from gatelm.eval.long import LongDocuments

UNSTATED_TOKENS = 512
"""The context of a model that states none."""

_LENGTH = re.compile(r"(\d+)(k?)", re.IGNORECASE)


def parse_lengths(text: str, option: str = "--lengths") -> list[int]:
    """Parse `1k,2k,4096` as numbers of tokens, ascending; k is 1,024.

    Raises:
        ConfigError: something that is no length.
    """
    found = set()
    for part in text.split(","):
        match = _LENGTH.fullmatch(part.strip())
        if match is None or len(match[1]) > 15 or int(match[1]) < 1:
            raise ConfigError(
                f"{option} {text}: {part.strip()!r} is no length; write tokens, such as 512,1k,32k"
            )
        found.add(int(match[1]) * (1024 if match[2] else 1))
    return sorted(found)


def show_length(num_tokens: int) -> str:
    """Format a length: `32k` for 32,768, any other number as it is."""
    whole = num_tokens >= 1024 and num_tokens % 1024 == 0
    return f"{num_tokens // 1024}k" if whole else f"{num_tokens:,}"


def by_position(
    model: str,
    *,
    data: str,
    lengths: list[int] | None,
    max_documents: int | None,
    window_tokens: int | None,
    stride_tokens: int | None,
    first_tokens: list[int],
    bos: Literal["auto", "always", "never"],
    max_lost: float,
    chunk_tokens: int,
    place: Opening,
) -> dict[str, Any]:
    """Measure loss by length and position, and in sliding windows if a window is given.

    lengths: None takes the model's own, at most 8,192.
    """
    from dataclasses import asdict

    from gatelm.data.holdout import read_texts
    from gatelm.eval.long import by_length, long_documents, sliding_windows
    from gatelm.hf.load import open_reader, stated_context
    from gatelm.hf.probe.prefill import prefill_of
    from gatelm.hf.probe.tokenizer import checked_coverage

    texts, which = read_texts(data)
    probe, tokenizer = open_reader(model, **place)
    coverage = checked_coverage(tokenizer, texts, max_lost, data)
    lengths = lengths or [min(stated_context(model, probe) or UNSTATED_TOKENS, 8192)]
    documents = long_documents(
        texts, tokenizer, num_tokens=lengths[-1], max_documents=max_documents, bos=bos
    )
    reader = prefill_of(probe)
    results: dict[str, Any] = {
        "data": data,
        "documents": which,
        "num_documents": len(documents.tokens),
        "long_enough": documents.available,
        "bytes_per_token": documents.bytes_per_token * (1 - coverage.dropped),
        "coverage": coverage.tree(),
        "first_token": asdict(documents.first),
        "positions_move_with_length": reader.length_dependent,
    }
    with Bars() as bars, one_sentence(probe.name):
        found = by_length(reader, documents, lengths, chunk_tokens=chunk_tokens, progress=bars.show)
        results["lengths"] = [entry.to_json() for entry in found]
        if window_tokens is not None:
            results["sliding"] = sliding_windows(
                reader,
                documents,
                window_tokens=window_tokens,
                stride_tokens=stride_tokens or min(256, window_tokens),
                chunk_tokens=chunk_tokens,
                progress=bars.show,
            ).to_json()
        if window_tokens is not None and first_tokens:
            results["streaming"] = _streamed(probe, documents, window_tokens, first_tokens, bars)
    return results


def _streamed(
    probe: Probe,
    documents: LongDocuments,
    window_tokens: int,
    first_tokens: list[int],
    bars: Bars,
) -> list[dict[str, Any]]:
    """Measure loss through a cache of the window and first tokens, one entry for each number."""
    import math

    import torch

    from gatelm.hf.probe.handover import hand_over
    from gatelm.inference.streaming import streaming_losses

    model = hand_over(probe)
    out = []
    for count in first_tokens:
        losses = [
            streaming_losses(
                model, tokens, first_tokens=count, window_tokens=window_tokens, progress=bars.show
            )
            for tokens in documents.tokens
        ]
        loss = float(torch.cat(losses).double().mean())
        out.append(
            {
                "first_tokens": count,
                "window_tokens": window_tokens,
                "loss": loss,
                "perplexity": math.exp(loss) if loss < 700 else math.inf,
            }
        )
    return out


@contextmanager
def one_sentence(name: str) -> Iterator[None]:
    """Turn a model's refusal into the one sentence of a user's mistake."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None


def table(found: dict[str, Any]) -> list[str]:
    """Format the results as a table for people."""
    count, available = found["num_documents"], found["long_enough"]
    longest = found["lengths"][-1]["length_tokens"]
    lines = [
        f"{found['data']} ({found['documents']}): the first {longest:,} tokens of {count} of "
        f"{available} documents that long; rows begin with {found['first_token']['reason']}",
        "  first tokens   perplexity      loss   bits per byte",
    ]
    for entry in found["lengths"]:
        lines.append(
            f"  {show_length(entry['length_tokens']):>12}   {entry['perplexity']:>10.3f}"
            f"  {entry['loss']:>8.4f}   {entry['bits_per_byte']:>13.4f}"
        )
    if found["positions_move_with_length"]:
        lines.append("  (positions move with the length, so each length was run by itself)")
    lines.append(f"  tokens of context   perplexity      tokens   (at {longest:,} tokens)")
    lines += position_lines(found["lengths"][-1]["by_position"])
    if sliding := found.get("sliding"):
        lines += [
            f"  windows of {sliding['window_tokens']:,} tokens, {sliding['stride_tokens']:,} apart",
            f"  perplexity     {sliding['perplexity']:.4f}   every token weighs the same",
            f"  perplexity     {sliding['window_mean_perplexity']:.4f}   every window weighs the "
            "same (as published with YaRN)",
            f"  bits per byte  {sliding['bits_per_byte']:.4f}",
        ]
    for entry in found.get("streaming", ()):
        lines.append(
            f"  perplexity     {entry['perplexity']:.4f}   streamed, {entry['first_tokens']} first "
            f"tokens and {entry['window_tokens']:,} last ones in the cache"
        )
    return lines


def position_lines(bins: list[dict[str, Any]]) -> list[str]:
    """One line a bin of context lengths."""
    lines = []
    for entry in bins:
        first, last = entry["first"], entry["last"]
        span = str(first) if first == last else f"{first}-{last}"
        lines.append(f"  {span:>17}   {entry['perplexity']:>10.3f}  {entry['tokens']:>10,}")
    return lines
