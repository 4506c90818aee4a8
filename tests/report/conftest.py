"""A synthetic study of realistic shape: what `gatelm study run` leaves behind, without training.

Run as a script to look at a report: `python tests/report/conftest.py FOLDER`.
"""

from __future__ import annotations

import json
import math
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from gatelm.study.results.statistics import correct, mean_interval, paired_difference

Metrics = dict[str, float]


@dataclass(frozen=True)
class Arm:
    """How an arm of the synthetic study behaves."""

    share: float
    loss: float
    gate: float | None = None
    activation: float = 12.0


@dataclass(frozen=True)
class Shape:
    """The size of a part's runs."""

    layers: int
    heads: int
    steps: int
    tokens: int
    start: float
    marks: tuple[str, ...] = ()


MECHANISM = {
    "none": Arm(0.95, 0.634, None, 11),
    "sdpa-element": Arm(0.06, 0.631, 0.22, 9),
    "sdpa-head": Arm(0.055, 0.638, 0.18, 10),
    "non-sparse": Arm(0.94, 0.632, 0.63, 11),
    "input-independent": Arm(0.91, 0.637, 0.25, 12),
    "value": Arm(0.31, 0.633, 0.31, 10),
}
TEXT = {
    "none": Arm(0.021, 3.412, None, 58),
    "sdpa-head": Arm(0.019, 3.381, 0.41, 33),
    "sdpa-element": Arm(0.018, 3.379, 0.36, 27),
}
SHAPES = {
    "mechanism": Shape(1, 1, 1500, 40, 4.1, ("trigger", "non_trigger")),
    "text": Shape(4, 4, 600, 48, 8.3),
}
SPECS: dict[str, dict[str, Any]] = {
    "mechanism": {
        "title": "Mechanism: does the gate remove the attention sink?",
        "question": "On a task whose head has nothing to do at most positions, which gates keep "
        "attention from piling up on the first token?",
        "claims": [
            "A sparse, input-dependent gate after SDPA lowers first-token attention from 0.467 to "
            "0.048; a non-sparse gate keeps 0.451, an input-independent one 0.364 (arXiv "
            "2505.06708, table 4).",
        ],
        "note": "The setting was chosen after another one (learning rate 1e-3, weight decay 0.01, "
        "800 steps) had shown no effect.",
        "metrics": ["val_loss", "first_token_share_non_trigger", "sink_rate", "gate_mean",
                    "accuracy_trigger", "max_logit"],
        "primary_metrics": ["first_token_share_non_trigger", "val_loss"],
    },
    "text": {
        "title": "Real text: does the gate help a small language model?",
        "question": "At equal parameters and data, is the validation loss lower with a gate?",
        "claims": ["Gating after SDPA lowers perplexity by 0.2 and more (arXiv 2505.06708)."],
        "note": "",
        "metrics": ["val_loss", "val_bits_per_byte", "first_token_share", "max_activation",
                    "gate_mean"],
        "primary_metrics": ["val_loss"],
    },
}  # fmt: skip


def write_study(
    root: Path,
    parts: dict[str, dict[str, Arm]],
    seeds: dict[str, Sequence[int]],
    *,
    edit: Callable[[dict[str, Any]], None] | None = None,
    analysis: bool = True,
) -> Path:
    """Write results.json and run folders; `edit` may change the results before they are written."""
    results: dict[str, Any] = {
        "study": "demo",
        "title": "What gated attention does at small scale",
        "summary": "Two small experiments on a CPU.",
        "gatelm_version": "0.1.0",
        "versions": {"python": "3.11.7", "torch": "2.13.0"},
        "command": "gatelm study run demo --set parts.text.base.train.total_steps=600",
        "parts": {},
        "runs": [],
        "summaries": [],
        "comparisons": [],
    }
    for name, arms in parts.items():
        shape = SHAPES[name]
        base = _base_config(shape)
        results["parts"][name] = {
            **SPECS[name], "baseline": "none", "confidence": 0.95, "arms": list(arms),
            "base_config": base,
            "arm_overrides": {arm: {"model.layer.attention.gates": arm} for arm in arms},
        }  # fmt: skip
        for arm, behaviour in arms.items():
            for seed in seeds[name]:
                run = _write_run(root, name, arm, behaviour, shape, seed, base, analysis)
                results["runs"].append(run)
    add_statistics(results)
    if edit:
        edit(results)
    (root / "results.json").write_text(json.dumps(results))
    return root


def add_statistics(results: dict[str, Any]) -> None:
    """Fill summaries and comparisons from the runs, as the study does."""
    results["summaries"], results["comparisons"] = [], []
    for part, spec in results["parts"].items():
        for metric in spec["metrics"]:
            values: dict[str, dict[int, float]] = {}
            for run in results["runs"]:
                if run["part"] == part and run["status"] == "finished" and metric in run["metrics"]:
                    values.setdefault(run["arm"], {})[run["seed"]] = run["metrics"][metric]
            for arm, by_seed in values.items():
                results["summaries"].append(
                    {"part": part, "arm": arm, "axes": {}, "metric": metric,
                     **vars(mean_interval(list(by_seed.values())))}
                )  # fmt: skip
            others = [arm for arm in values if arm != "none"]
            if "none" not in values:
                continue
            pairs = correct([paired_difference(values[arm], values["none"]) for arm in others])
            for arm, pair in zip(others, pairs, strict=True):
                results["comparisons"].append(
                    {"part": part, "arm": arm, "axes": {}, "baseline": "none", "metric": metric,
                     **vars(pair), "sentence": ""}
                )  # fmt: skip


def _base_config(shape: Shape) -> dict[str, Any]:
    return {
        "name": "demo",
        "model": {"num_layers": shape.layers, "hidden_dim": 128, "layer": {"gates": []}},
        "optim": {"lr": 3e-3, "weight_decay": 0.0},
        "train": {"total_steps": shape.steps, "batch_size": 64},
    }


def _write_run(
    root: Path, part: str, arm: str, behaviour: Arm, shape: Shape, seed: int,
    base: dict[str, Any], analysis: bool,
) -> dict[str, Any]:  # fmt: skip
    rng = random.Random(f"{part}/{arm}/{seed}")
    digest = f"{rng.getrandbits(48):012x}"
    relative = f"runs/{part}/{arm}/seed-{seed}-{digest[:8]}"
    folder = root / relative
    folder.mkdir(parents=True)
    loss = behaviour.loss + 0.01 * random.Random(seed).gauss(0, 1) + rng.gauss(0, 0.004)
    lines = _log_lines(rng, shape, behaviour, loss)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.yaml").write_text(yaml.safe_dump({**base, "seed": seed}))
    look = _analysis(rng, shape, behaviour)
    if analysis:
        (folder / "analysis.json").write_text(json.dumps(look))
    metrics = _metrics(rng, shape, behaviour, loss, look)
    gates = 0 if behaviour.gate is None else 129 * shape.layers
    return {
        "part": part, "arm": arm, "axes": {}, "seed": seed, "config_hash": digest,
        "status": "finished", "folder": relative, "parameters": 1_184_256 + gates,
        "gate_parameters": gates, "metrics": metrics, "seconds": 30 + 40 * rng.random(),
    }  # fmt: skip


def _log_lines(rng: random.Random, shape: Shape, arm: Arm, loss: float) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for step in range(0, shape.steps + 1, 10):
        level = loss + (shape.start - loss) * math.exp(-6 * step / shape.steps)
        out.append({"kind": "train", "step": step, "tokens": step * 4096,
                    "loss": level + rng.gauss(0, 0.05), "lr": 3e-3, "grad_norm": 0.7,
                    "tokens_per_second": 61000.0, "seconds": step / 20})  # fmt: skip
        if step % (shape.steps // 6 // 10 * 10) == 0 and step:
            out.append({"kind": "eval", "step": step, "val_loss": level + rng.gauss(0, 0.004)})
            share = arm.share * (1 - math.exp(-4 * step / shape.steps)) + 0.02
            out.append({"kind": "health", "step": step, "first_token_share": share,
                        "first_token_share_uniform": 0.0594})  # fmt: skip
    return out


def _metrics(
    rng: random.Random, shape: Shape, arm: Arm, loss: float, look: dict[str, Any]
) -> Metrics:
    shares = [value for row in look["first_token_share"] for value in row]
    out = {
        "val_loss": loss, "val_ppl": math.exp(loss), "val_bits_per_byte": loss / 3.1,
        "first_token_share": sum(shares) / len(shares), "first_token_share_uniform": 0.0594,
        "sink_rate": 1.0 if arm.share > 0.3 else 0.0, "max_logit": 40 + 80 * rng.random(),
        "max_activation": arm.activation * (1 + 0.1 * rng.random()),
    }  # fmt: skip
    if arm.gate is not None:
        out["gate_mean"] = arm.gate + rng.gauss(0, 0.01)
    if shape.marks:
        out["accuracy_trigger"] = 0.99 + 0.01 * rng.random()
        out["first_token_share_non_trigger"] = arm.share + rng.gauss(0, 0.006)
        out["first_token_share_trigger"] = 0.002 * rng.random()
        out["first_token_share_uniform_non_trigger"] = 0.058
    return out


def _analysis(rng: random.Random, shape: Shape, arm: Arm) -> dict[str, Any]:
    def grid(middle: float) -> list[list[float]]:
        return [[min(1.0, max(0.0, middle * rng.uniform(0.8, 1.1))) for _ in range(shape.heads)]
                for _ in range(shape.layers)]  # fmt: skip

    by_mark = {m: grid(arm.share if m.startswith("non") else 0.002) for m in shape.marks}
    depth = range(shape.layers + 1)
    return {
        "seq_len": 64, "num_sequences": 64, "bos": True, "uniform_share": 0.0594,
        "num_layers": shape.layers, "num_heads": shape.heads,
        "first_token_share": grid(arm.share), "first_token_share_by_mark": by_mark,
        "sink_rate": {"0.2": 1.0, "0.3": 1.0, "0.5": 0.9, "0.8": 0.7},
        "residual": {
            "max_abs": [4.0 + arm.activation * i / shape.layers for i in depth],
            "median_abs": [0.6 for _ in depth],
            "norm_ratio": [1 + 0.3 * arm.activation / 10 * i for i in depth],
        },
        "gates": [] if arm.gate is None else [_gate(rng, i, arm, shape)
                                              for i in range(shape.layers)],
        "attention_maps": _maps(rng, shape, arm),
    }  # fmt: skip


def _gate(rng: random.Random, layer: int, arm: Arm, shape: Shape) -> dict[str, Any]:
    middle = min(0.95, (arm.gate or 0.5) * rng.uniform(0.8, 1.2))
    centres = [(i + 0.5) / 40 for i in range(40)]
    counts = [round(9000 * math.exp(-(((c - middle) / 0.16) ** 2))) + 3 for c in centres]
    return {
        "layer": layer, "site": "sdpa", "mean": middle, "median": middle, "std": 0.15,
        "below_0.1": 0.4, "below_0.01": 0.1, "above_0.9": 0.05, "first_token_mean": 0.1,
        "token_std": 0.1, "mean_by_head": [middle] * shape.heads,
        "by_mark": {m: 0.02 if m.startswith("non") else 0.85 for m in shape.marks},
        "histogram": {"edges": [i / 40 for i in range(41)], "counts": counts},
    }  # fmt: skip


def _maps(rng: random.Random, shape: Shape, arm: Arm) -> dict[str, Any]:
    words = ["the", "of", "union", "and", "our", "people", "government", "states", "\u2581war"]
    sample = random.Random(1)
    tokens = ["<bos>", *(sample.choice(words) for _ in range(shape.tokens - 1))]
    maps = []
    for layer in range(shape.layers):
        for head in range(shape.heads):
            rows = []
            for query in range(shape.tokens):
                raw = [rng.random() ** 3 for _ in range(query)] or [0.0]
                total = sum(raw) or 1.0
                first = 1.0 if query == 0 else arm.share
                row = [first, *((1 - first) * r / total for r in raw[:query])]
                rows.append(row + [0.0] * (shape.tokens - len(row)))
            maps.append({"layer": layer, "head": head, "weights": rows})
    return {"tokens": tokens, "maps": maps}


def full_study(root: Path) -> Path:
    """Both parts, all arms, every run finished."""
    seeds = {"mechanism": (0, 1), "text": (0, 1, 2)}
    return write_study(root, {"mechanism": MECHANISM, "text": TEXT}, seeds)


@pytest.fixture
def study_writer(tmp_path: Path) -> Callable[..., Path]:
    """`write_study` into a fresh folder; arms and seeds may be chosen."""

    def write(part: str, arms: Sequence[str], seeds: Sequence[int], **options: Any) -> Path:
        known = {"mechanism": MECHANISM, "text": TEXT}[part]
        root = tmp_path / "study"
        root.mkdir()
        return write_study(root, {part: {a: known[a] for a in arms}}, {part: seeds}, **options)

    return write


@pytest.fixture(scope="session")
def built_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the full study, built once."""
    from gatelm.report.study.build import build_report

    return build_report(full_study(tmp_path_factory.mktemp("full")))


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BINARY = next((path for name in BROWSERS if (path := shutil.which(name))), None)

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


def look_at(html: str, folder: Path, width: int) -> dict[str, Any]:
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


def check_page(seen: dict[str, Any], width: int) -> None:
    assert seen["console"] == []
    assert seen["faults"] == []
    drawn, total = seen["charts"].split("/")
    assert drawn == total
    assert seen["empty"] == 0
    assert seen["wide"] == []
    assert seen["width"] == width
    assert seen["scrollWidth"] <= width


@pytest.fixture(scope="session")
def browser() -> SimpleNamespace:
    """`look` at a page in headless Chromium, from file:// and without a network, and `check` it."""
    if BINARY is None:
        pytest.skip(f"needs one of {', '.join(BROWSERS)} on the path")
    return SimpleNamespace(look=look_at, check=check_page)


if __name__ == "__main__":
    from gatelm.report.study.build import build_report

    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=False)
    print(build_report(full_study(target)))
