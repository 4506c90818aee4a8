"""The files of an analysis beside its report: JSON for programs, CSV for tables."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any


def write_results(results: dict[str, Any], folder: Path) -> None:
    """analysis.json (everything), metrics.csv (a row a metric) and heads.csv (a row a head).

    Raises:
        OSError: the folder cannot be written.
    """
    from gatelm.analysis.notebook import DETAIL_FIELDS, HEAD_FIELDS, head_rows
    from gatelm.io.files import finite
    from gatelm.report.charts.figures import replace

    text = json.dumps(finite(results), indent=1, ensure_ascii=False, allow_nan=False)
    replace(folder / "analysis.json", text.encode())
    models = results["models"]
    names = list(dict.fromkeys(name for m in models for name in m["metrics"]))
    rows = [["metric", *(m["name"] for m in models)]]
    rows += [[name, *(m["metrics"].get(name, "") for m in models)] for name in names]
    replace(folder / "metrics.csv", _csv(rows))
    header = ["model", "layer", "head", *HEAD_FIELDS, *DETAIL_FIELDS]
    heads = [[m["name"], *row.values()] for m in models for row in head_rows(m["analysis"])]
    replace(folder / "heads.csv", _csv([header, *heads]))


def _csv(rows: list[list[Any]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()
