import errno
import os
from pathlib import Path

import pytest

from gatelm.report.charts import figures
from gatelm.report.charts.heatmaps import attention_map
from gatelm.report.page import Figure, Page


def test_files_are_written_without_a_display(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    weights = [[1.0, 0.0], [0.5, 0.5]]
    chart = attention_map(
        ["<bos>", "war"], [{"layer": 0, "head": 0, "weights": weights}], title="m"
    )
    figure = Figure("map", chart, width=300, context="Evidence")
    png, svg = sorted(figures.write([figure], tmp_path / "figures"))
    assert png.read_bytes().startswith(b"\x89PNG")
    drawing = svg.read_text()
    assert "<bos>" not in drawing
    assert all(text in drawing for text in ("&lt;bos&gt;", "war", "Evidence"))
    assert drawing.count('aria-roledescription="rect mark"') in (0, 3)
    assert 'shape-rendering="crispEdges"' in drawing
    assert not list((tmp_path / "figures").glob(".*"))


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "report.html"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        figures.write_page(Page("new"), tmp_path)
    assert path.read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [tmp_path / "figures", path]
