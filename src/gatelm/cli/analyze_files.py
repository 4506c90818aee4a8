"""The files of an analysis beside its report: JSON for programs, CSV for tables."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEAD_FIELDS = ("first_token_share", "entropy", "normalized_entropy", "max_attention", "max_logit")
DETAIL_FIELDS = ("value_share", "gated_share")


def write_results(results: dict[str, Any], folder: Path) -> None:
    """analysis.json (everything), metrics.csv (a row a metric) and heads.csv (a row a head).

    Raises:
        OSError: the folder cannot be written.
    """
    from gatelm.analysis.summary import finite
    from gatelm.report.figures import replace

    text = json.dumps(finite(results), indent=1, ensure_ascii=False, allow_nan=False)
    replace(folder / "analysis.json", text.encode())
    models = results["models"]
    names = list(dict.fromkeys(name for m in models for name in m["metrics"]))
    rows = [["metric", *(m["name"] for m in models)]]
    rows += [[name, *(m["metrics"].get(name, "") for m in models)] for name in names]
    replace(folder / "metrics.csv", _csv(rows))
    header = ["model", "layer", "head", *HEAD_FIELDS, *DETAIL_FIELDS]
    replace(folder / "heads.csv", _csv([header, *(row for m in models for row in _heads(m))]))


def _csv(rows: list[list[Any]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def _heads(model: dict[str, Any]) -> Iterator[list[Any]]:
    tree = model["analysis"]
    detail = tree.get("detail") or {}
    places = {layer: i for i, layer in enumerate(detail.get("layers") or ())}
    for index, layer in enumerate(tree.get("attention_layers") or ()):
        for head in range(len(tree["first_token_share"][index])):
            values = [_cell(tree.get(name), index, head) for name in HEAD_FIELDS]
            values += [_cell(detail.get(name), places.get(layer), head) for name in DETAIL_FIELDS]
            yield [model["name"], layer, head, *values]


def _cell(table: Any, index: int | None, head: int) -> Any:
    if table is None or index is None:
        return ""
    value = table[index][head]
    return "" if value is None else value
