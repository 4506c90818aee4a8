"""The report in a real browser: headless Chromium, from file://, without a network."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from gatelm.report.build import study_page
from gatelm.report.load import read_study

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BINARY = next((path for name in BROWSERS if (path := shutil.which(name))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BINARY is None, reason=f"needs one of {', '.join(BROWSERS)} on the path"),
]

PROBE = """<script>
window.faults = [];
window.addEventListener("error", (event) => faults.push(String(event.message)));
window.addEventListener("unhandledrejection", (event) => faults.push(String(event.reason)));
document.addEventListener("securitypolicyviolation", (event) => faults.push(event.blockedURI));
async function probe() {
  const root = document.documentElement;
  while (!root.dataset.charts) await new Promise((done) => setTimeout(done, 20));
  const places = Array.from(document.querySelectorAll("[data-chart]"));
  const marks = (place) => place.querySelectorAll("svg .mark-rect.role-mark path").length;
  const maps = places.filter((place) => place.dataset.chart.includes("attention-map"));
  const shown = maps.map(marks);
  for (const select of document.querySelectorAll("[data-param=first]")) {
    select.value = JSON.stringify("hide");
    select.dispatchEvent(new Event("change"));
  }
  await new Promise((done) => setTimeout(done, 500));
  parent.postMessage({
    charts: root.dataset.charts,
    empty: places.filter((p) => !p.querySelector("svg [role=graphics-symbol], svg path")).length,
    wide: places.filter((p) => p.scrollWidth > p.clientWidth + 1).map((p) => p.dataset.chart),
    width: window.innerWidth,
    scrollWidth: root.scrollWidth,
    shown, hidden: maps.map(marks), faults,
  }, "*");
}
</script>"""


# A window has a least width of about 500 pixels, a frame has not.
FRAME = """<!DOCTYPE html><iframe src="report.html" style="width:{width}px;height:900px;border:0">
</iframe><script>
addEventListener("message", (event) => {{
  const out = document.createElement("pre");
  out.id = "probe";
  out.textContent = JSON.stringify(event.data);
  document.body.append(out);
}});
</script>"""


def look(html: str, folder: Path, width: int) -> dict[str, Any]:
    """What the page says of itself after drawing, in a frame of that width."""
    assert BINARY is not None
    head, tail = html.split("<head>", 1)
    end = tail.rindex("</body>")
    report, frame = folder / "report.html", folder / "frame.html"
    report.write_text(f"{head}<head>{PROBE}{tail[:end]}<script>probe()</script>{tail[end:]}")
    frame.write_text(FRAME.format(width=width))
    command = [
        BINARY, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--disable-dev-shm-usage", "--hide-scrollbars", "--enable-logging=stderr",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width + 40},1000", "--virtual-time-budget=60000", "--dump-dom",
        frame.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=True)
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.S)
    assert found, f"the page did not finish drawing: {done.stderr[-2000:]}"
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return {**json.loads(unescape(found[1])), "console": console}


def check(seen: dict[str, Any], width: int) -> None:
    assert seen["console"] == []
    assert seen["faults"] == []
    drawn, total = seen["charts"].split("/")
    assert drawn == total
    assert seen["empty"] == 0
    assert seen["wide"] == []
    assert seen["width"] == width
    assert seen["scrollWidth"] <= width


@pytest.mark.parametrize("width", [1280, 400])
def test_the_full_report_is_drawn_and_fits(built_report: Path, tmp_path: Path, width: int) -> None:
    seen = look(built_report.read_text(), tmp_path, width)
    check(seen, width)
    assert seen["charts"] == "40/40"
    # A map of T tokens has T(T+1)/2 cells, and T fewer without its first column.
    assert set(seen["shown"]) == {40 * 41 // 2, 48 * 49 // 2}
    assert set(seen["hidden"]) == {40 * 39 // 2, 48 * 47 // 2}


def test_hostile_text_is_only_text(study_writer: Callable[..., Path], tmp_path: Path) -> None:
    evil = '<img src="http://127.0.0.1/x" onerror=alert(1)></script>"\\n'

    def spoil(results: dict[str, Any]) -> None:
        results["title"] = evil
        results["parts"]["text"]["arms"] = ["none", evil]
        for key in ("runs", "summaries", "comparisons"):
            for item in results[key]:
                item["arm"] = "none" if item["arm"] == "none" else evil
        results["runs"][1]["status"] = "diverged"

    root = study_writer("text", ["none", "sdpa-head"], [0, 1], edit=spoil)
    for path in root.glob("runs/*/*/*/analysis.json"):
        analysis = json.loads(path.read_text())
        analysis["attention_maps"]["tokens"][1] = evil
        path.write_text(json.dumps(analysis))
    check(look(study_page(read_study(root)).html(), tmp_path, 400), 400)
