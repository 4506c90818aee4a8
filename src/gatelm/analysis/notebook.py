"""Analyze token ids from a notebook: the result has rows that a dataframe takes as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gatelm.analysis.measure import analyze_batches
from gatelm.analysis.probe.protocol import Probe
from gatelm.analysis.statistics.maps import Decode
from gatelm.nn.attention.masks import PADDING
from gatelm.nn.shapes import Bool, Int, Tensor

HEAD_FIELDS = ("first_token_share", "entropy", "normalized_entropy", "max_attention", "max_logit")
DETAIL_FIELDS = ("value_share", "gated_share")
RESIDUAL_FIELDS = ("max_abs", "median_abs", "ratio", "kurtosis", "norm_ratio")

Row = dict[str, Any]


@dataclass(frozen=True)
class Report:
    """Result of an analysis: flat `metrics` (see `analysis.metrics.registry`), and rows of tables.

    pandas.DataFrame(report.heads), report.layers, report.gates; `tree` is analysis.json.
    """

    metrics: Mapping[str, float]
    tree: Mapping[str, Any]

    @property
    def heads(self) -> list[Row]:
        """One row for each layer and head."""
        return list(head_rows(self.tree))

    @property
    def layers(self) -> list[Row]:
        """One row for each layer of the residual stream; layer -1 is the embedding."""
        residual = self.tree["residual"]
        return [
            {"layer": index - 1, **{name: residual[name][index] for name in RESIDUAL_FIELDS}}
            for index in range(len(residual["max_abs"]))
        ]

    @property
    def gates(self) -> list[Row]:
        """One row for each gate: its layer, its site, and every figure that is one number."""
        return [
            {name: value for name, value in gate.items() if not isinstance(value, (list, dict))}
            for gate in self.tree["gates"]
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name:<40} {value:.4g}" for name, value in self.metrics.items())


@dataclass(frozen=True)
class _Rows:
    """Token ids as a batch: every token but the last of its document has the next as its target."""

    tokens: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]
    documents: Int[Tensor, "B T"] | None
    marks: Mapping[str, Bool[Tensor, "B T"]] = field(default_factory=dict)


def analyze(
    model: torch.nn.Module | Probe,
    ids: Int[Tensor, "*B T"] | Sequence[int],
    *,
    documents: Int[Tensor, "B T"] | None = None,
    decode: Decode | None = None,
    rows_at_once: int = 4,
) -> Report:
    """Measure a decoder of gatelm, or a `gatelm.hf.probe.hf_probe.HFProbe`, on rows of token ids.

    ids: (T,) or (B,T). No token is added: put BOS there yourself if the model expects it.
    documents: id of each token's document within its row; -1 for padding. None: one a row.
    decode: display strings of token ids, for the tables.

    Raises:
        ValueError: rows shorter than two tokens, or a model that cannot be read.
    """
    tokens = torch.as_tensor(ids)
    tokens = tokens[None] if tokens.dim() == 1 else tokens
    if tokens.dim() != 2 or tokens.shape[1] < 2:
        raise ValueError(f"ids: expected (T,) or (B, T) with T >= 2, got {tuple(tokens.shape)}")
    parts = (slice(i, i + rows_at_once) for i in range(0, len(tokens), rows_at_once))
    batches = (_rows(tokens[p], None if documents is None else documents[p]) for p in parts)
    found = analyze_batches(model, batches, decode=decode, detail="full")
    return Report(found.metrics(), found.to_json())


def head_rows(tree: Mapping[str, Any]) -> Iterator[Row]:
    """The per-head figures of an analysis.json, one row a layer and head; None if not measured."""
    detail = tree.get("detail") or {}
    places = {layer: i for i, layer in enumerate(detail.get("layers") or ())}
    for index, layer in enumerate(tree.get("attention_layers") or ()):
        for head in range(len(tree["first_token_share"][index])):
            row: Row = {"layer": layer, "head": head}
            row |= {name: _cell(tree.get(name), index, head) for name in HEAD_FIELDS}
            row |= {n: _cell(detail.get(n), places.get(layer), head) for n in DETAIL_FIELDS}
            yield row


def _rows(tokens: Tensor, documents: Tensor | None) -> _Rows:
    targets = torch.full_like(tokens, -100)
    targets[:, :-1] = tokens[:, 1:]
    if documents is not None:
        within = documents[:, 1:] == documents[:, :-1]
        targets[:, :-1][~within | (documents[:, :-1] == PADDING)] = -100
    return _Rows(tokens, targets, documents)


def _cell(table: Any, index: int | None, head: int) -> Any:
    return None if table is None or index is None else table[index][head]
