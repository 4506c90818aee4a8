"""The files of an analysis beside its report: JSON for programs, CSV for tables."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

RESULTS = "analysis.json"
METRICS, HEADS = "metrics.csv", "heads.csv"
WRITTEN = (METRICS, HEADS, "report.html", "figures")
"""What an analysis writes after `RESULTS`."""


def write_results(results: dict[str, Any], folder: Path) -> None:
    """analysis.json (everything), metrics.csv (a row a metric) and heads.csv (a row a head).

    Raises:
        WriteError: the folder cannot be written.
    """
    from gatelm.analysis.notebook import DETAIL_FIELDS, HEAD_FIELDS, head_rows
    from gatelm.io.files import json_text, write_text

    write_text(folder / RESULTS, json_text(results, indent=1))
    models = results["models"]
    names = list(dict.fromkeys(name for m in models for name in m["metrics"]))
    rows = [["metric", *(m["name"] for m in models)]]
    rows += [[name, *(m["metrics"].get(name, "") for m in models)] for name in names]
    write_text(folder / METRICS, _csv(rows))
    header = ["model", "layer", "head", *HEAD_FIELDS, *DETAIL_FIELDS]
    heads = [[m["name"], *row.values()] for m in models for row in head_rows(m["analysis"])]
    write_text(folder / HEADS, _csv([header, *heads]))


def _csv(rows: list[list[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()
