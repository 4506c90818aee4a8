"""Sinks at any key: at which positions, and on which tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import torch

from gatelm.analysis.statistics.attention import MIN_DOCUMENT_TOKENS
from gatelm.analysis.statistics.precise import double
from gatelm.analysis.statistics.streaming import AttentionRows
from gatelm.nn.shapes import Int, Tensor

TokenKind = Literal["first token", "delimiter", "other"]


class SinkTokens:
    """Counts (key, head) pairs whose importance exceeds a threshold (arXiv 2410.10781), over the
    keys that at least 16 queries see, in documents of at least 16 tokens."""

    def __init__(self, threshold: float):
        self.threshold = threshold
        self.by_token: Counter[int] = Counter()
        self.first_by_token: Counter[int] = Counter()
        self.seen: Counter[int] = Counter()
        self._at = self._keys = torch.zeros(0, dtype=torch.float64)
        self.by_layer: dict[int, tuple[float, float]] = {}

    def add(self, layer: int, rows: AttentionRows, tokens: Int[Tensor, "B S"]) -> None:
        """Add one layer of one batch."""
        layout = rows.layout
        long = layout.valid & (layout.document_tokens() >= MIN_DOCUMENT_TOKENS)
        counted = long & (rows.importance_queries >= MIN_DOCUMENT_TOKENS)
        over = (rows.importance > self.threshold).sum(dim=1) * counted
        heads = rows.importance.shape[1]
        first = over * layout.begins
        self._count(self.by_token, tokens, over)
        self._count(self.first_by_token, tokens, first)
        self._count(self.seen, tokens, counted * heads)
        at_first, elsewhere = self.by_layer.get(layer, (0.0, 0.0))
        total, on_first = float(over.sum()), float(first.sum())
        self.by_layer[layer] = (at_first + on_first, elsewhere + total - on_first)
        self._add_positions(layout.position, over, counted * heads)

    def _count(self, counter: Counter[int], tokens: Tensor, amounts: Int[Tensor, "B S"]) -> None:
        where = amounts > 0
        ids, inverse = tokens[where].unique(return_inverse=True)
        sums = torch.zeros(len(ids), dtype=torch.long, device=ids.device)
        sums.scatter_add_(0, inverse, amounts[where].long())
        counter.update(dict(zip(ids.tolist(), sums.tolist(), strict=True)))

    def _add_positions(self, position: Tensor, over: Tensor, counted: Tensor) -> None:
        length = position.shape[1]
        if length > len(self._at):
            pad = (0, length - len(self._at))
            self._at = torch.nn.functional.pad(self._at, pad)
            self._keys = torch.nn.functional.pad(self._keys, pad)
        index = position.flatten().cpu()
        self._at.scatter_add_(0, index, double(over.flatten()))
        self._keys.scatter_add_(0, index, double(counted.flatten()))

    @property
    def total(self) -> int:
        """Number of (key, head) pairs that are sinks."""
        return self.by_token.total()

    def rate_by_position(self) -> list[float]:
        """Share of heads and documents with a sink at each key position; NaN where none counts."""
        return (self._at / self._keys).tolist()

    def shares(self, display: Callable[[int], str] | None) -> dict[str, float]:
        """Shares of all sinks that are on first tokens, on later delimiters, and on other tokens.

        Without display strings "delimiter" is left out, and "other" holds both.
        """
        if not self.total:
            return {}
        first = self.first_by_token.total()
        out = {"first token": first / self.total}
        rest = self.by_token - self.first_by_token
        if display is not None:
            marks = sum(n for token, n in rest.items() if is_delimiter(display(token)))
            out["delimiter"] = marks / self.total
            out["other"] = (rest.total() - marks) / self.total
        else:
            out["other"] = rest.total() / self.total
        return out

    def top(self, display: Callable[[int], str] | None, most: int = 12) -> list[dict[str, Any]]:
        """The tokens with most sinks beyond the first of a document, then those on first tokens."""
        rest = self.by_token - self.first_by_token
        rows = []
        for where, counts in (("first", self.first_by_token), ("later", rest)):
            for token, sinks in counts.most_common(most):
                rows.append(
                    {
                        "id": token,
                        "token": str(token) if display is None else display(token),
                        "where": where,
                        "sinks": sinks,
                        "share": sinks / self.total,
                        "rate": sinks / self.seen[token] if self.seen[token] else float("nan"),
                    }
                )
        return rows


def is_delimiter(text: str) -> bool:
    """Whether a token's text has no letter and no digit: punctuation, white space, a line end."""
    return not any(character.isalnum() for character in text)
