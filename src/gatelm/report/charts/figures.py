"""The page's charts as PNG and SVG files, drawn without a display or a browser."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import vl_convert

from gatelm.io.files import write_bytes, write_text
from gatelm.report.charts.theme import CONFIG
from gatelm.report.charts.vega import vega_lite_version
from gatelm.report.page import Figure, Page

SCALE = 2.0
EXPORT_FONT = "Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"


def svg(figure: Figure) -> str:
    """Render a chart as SVG text of the figure's width."""
    title = {"text": figure.title, "subtitle": figure.context}
    spec = {**figure.spec, "width": figure.width, "title": title}
    config = {**CONFIG, "font": EXPORT_FONT}
    text = vl_convert.vegalite_to_svg(spec, vl_version=vega_lite_version(), config=config)
    # Neighbouring cells of a heatmap would show hair lines between them.
    return text.replace('<g class="mark-rect', '<g shape-rendering="crispEdges" class="mark-rect')


def write(figures: Iterable[Figure], folder: Path) -> list[Path]:
    """Write NAME.svg and NAME.png of each figure; each file is replaced as a whole."""
    folder.mkdir(parents=True, exist_ok=True)

    def save(path: Path, drawing: str) -> list[Path]:
        write_text(path, drawing)
        write_bytes(path.with_suffix(".png"), vl_convert.svg_to_png(drawing, scale=SCALE))
        return [path, path.with_suffix(".png")]

    # One thread draws, the others turn its drawings into pixels, which takes as long again.
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        jobs = [pool.submit(save, folder / f"{figure.name}.svg", svg(figure)) for figure in figures]
        return [path for job in jobs for path in job.result()]


def write_page(page: Page, folder: Path) -> Path:
    """Write report.html and figures/; returns the path of the former.

    Raises:
        OSError: the folder cannot be written; an existing report is then untouched.
    """
    content = page.html()
    write(page.figures, folder / "figures")
    write_text(folder / "report.html", content)
    return folder / "report.html"
