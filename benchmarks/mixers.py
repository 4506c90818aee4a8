"""Time and memory of every sequence mixer against the length of the text, on this machine.

One mixer of width 256 (4 heads of 64 for attention), forward and backward in float32, one row.
Each measurement has a process of its own: seconds are those of the processor, memory is what the
work adds to the resident memory of the process before it.

Prints a table with each mixer's ratio to attention and, per doubling of the text, by how much its
time and memory grew (2 is linear, 4 quadratic). With --out also a chart, cost.svg and cost.png,
and the numbers, cost.json. A run that is stopped goes on from the numbers in --out.

    python benchmarks/mixers.py [--lengths 1024 2048 4096 8192] [--mixers attention linear]
        [--threads 1] [--repeats 2] [--out docs/results/mixers]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

DIM, HEADS, WIDTH = 256, 4, 64
WARM_UP_TOKENS = 64
ATTENTION = {"num_heads": HEADS, "head_dim": WIDTH}
LATENT = {"rope": {"partial_factor": 0.5}, "projection": {"kind": "latent", "kv_rank": 64}}
GATED = ["sdpa-silu-gate"]
LAYERS: dict[str, dict[str, Any]] = {
    "attention": {"mixer": ATTENTION},
    "gated attention": {"mixer": ATTENTION, "gates": ["sdpa-element"]},
    "window 256": {"mixer": {**ATTENTION, "window_tokens": 256}},
    "latent": {"mixer": {**ATTENTION, **LATENT}},
    "linear": {"mixer": {"kind": "linear", **ATTENTION}},
    "mamba2": {"mixer": {"kind": "mamba2", "num_heads": 8, "state_dim": 64}, "gates": GATED},
    "delta": {"mixer": {"kind": "delta", **ATTENTION}, "gates": GATED},
}
"""By the name in the chart. mamba2 has heads for twice the width, as published."""


@dataclass(frozen=True)
class Measured:
    """Forward and backward of one mixer on one text; the least of the repeats."""

    mixer: str
    tokens: int
    cpu_seconds: float
    peak_mib: float


def work(mixer: str, tokens: int) -> Callable[[], None]:
    """A function that runs the mixer forward and backward once."""
    from gatelm.nn.attention.masks import AttentionMask
    from gatelm.nn.forward_state import Context
    from gatelm.nn.init import init_weights
    from gatelm.nn.model import Decoder, ModelConfig

    layer = {"ffn": {"kind": "none"}, **LAYERS[mixer]}
    tree = {"vocab_size": 1, "hidden_dim": DIM, "num_layers": 1, "layer": layer}
    model = Decoder(ModelConfig.parse(tree))
    init_weights(model, 0)
    x = torch.randn(1, tokens, DIM, generator=torch.Generator().manual_seed(0))

    def run() -> None:
        model.zero_grad()
        context = Context(AttentionMask(tokens, tokens, None, x.device), torch.arange(tokens))
        model.layers[0].attn(x, x, context).square().mean().backward()

    return run


def in_this_process(mixer: str, tokens: int, threads: int, repeats: int) -> tuple[float, float]:
    """Processor seconds of the fastest run, MiB of resident memory that the first one adds."""
    torch.set_num_threads(threads)
    work(mixer, WARM_UP_TOKENS)()
    run = work(mixer, tokens)
    before = _status_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    run()
    peak = (_status_kib("VmHWM") - before) / 1024
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        run()
        seconds.append(time.process_time() - started)
    return min(seconds), peak


def _status_kib(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def measure(mixer: str, tokens: int, threads: int, repeats: int) -> Measured:
    """In a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(in_this_process, (mixer, tokens, threads, repeats))
    return Measured(mixer, tokens, *found)


def with_ratios(found: list[Measured]) -> list[dict[str, Any]]:
    """Each measurement beside attention's of the same length, and the mixer's of half of it."""
    known = {(m.mixer, m.tokens): m for m in found}
    rows = []
    for m in found:
        row = asdict(m)
        for name, other in (
            ("to_attention", known.get(("attention", m.tokens))),
            ("growth", known.get((m.mixer, m.tokens // 2))),
        ):
            row[f"time_{name}"] = other and m.cpu_seconds / other.cpu_seconds
            row[f"memory_{name}"] = other and m.peak_mib / other.peak_mib
        rows.append(row)
    return rows


def line(row: dict[str, Any]) -> str:
    """One row of the table."""

    def times(value: float | None) -> str:
        return "-" if value is None else f"{value:.2f}x"

    return (
        f"{row['mixer']:<16}{row['tokens']:>7,}{row['cpu_seconds']:>10.3f} s"
        f"{row['peak_mib']:>10,.1f} MiB"
        + "".join(
            f"{times(row[key]):>9}"
            for key in ("time_to_attention", "memory_to_attention", "time_growth", "memory_growth")
        )
    )


def chart(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Time and memory, and both over attention's, against the text's length: a Vega-Lite spec."""
    import altair as alt

    lengths = sorted({row["tokens"] for row in rows})

    def panel(field: str, title: str) -> alt.Chart:
        log, powers = alt.Scale(type="log"), alt.Scale(type="log", base=2, nice=False)
        return (
            alt.Chart(alt.Data(values=[row for row in rows if row[field]]), title=title)
            .mark_line(point=True)
            .encode(
                x=alt.X("tokens:Q", title="tokens", scale=powers, axis=alt.Axis(values=lengths)),
                y=alt.Y(f"{field}:Q", title=None, scale=log),
                color=alt.Color("mixer:N", title="mixer", sort=list(LAYERS)),
                strokeDash=alt.StrokeDash("mixer:N", sort=list(LAYERS), legend=None),
            )
            .properties(width=300, height=220)
        )

    left = panel("cpu_seconds", "Time, processor seconds") & panel(
        "time_to_attention", "Time over attention's"
    )
    right = panel("peak_mib", "Memory, MiB") & panel(
        "memory_to_attention", "Memory over attention's"
    )
    return (left | right).to_dict()


def draw(rows: list[dict[str, Any]], folder: Path) -> None:
    """Write cost.svg and cost.png."""
    import vl_convert

    from gatelm.io.files import write_bytes
    from gatelm.report.charts.figures import EXPORT_FONT
    from gatelm.report.charts.theme import CONFIG
    from gatelm.report.charts.vega import vega_lite_version

    config = {**CONFIG, "font": EXPORT_FONT}
    drawn = vl_convert.vegalite_to_svg(chart(rows), vl_version=vega_lite_version(), config=config)
    write_bytes(folder / "cost.svg", drawn.encode())
    write_bytes(folder / "cost.png", vl_convert.svg_to_png(drawn, scale=1.0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--mixers", nargs="+", choices=list(LAYERS), default=list(LAYERS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    numbers = args.out / "cost.json" if args.out else None
    found: dict[tuple[str, int], Measured] = {}
    if numbers and numbers.exists():
        for m in json.loads(numbers.read_text())["results"]:
            found[m["mixer"], m["tokens"]] = Measured(**m)
    for tokens in args.lengths:
        for mixer in args.mixers:
            if (mixer, tokens) not in found:
                found[mixer, tokens] = measure(mixer, tokens, args.threads, args.repeats)
            print(line(with_ratios(list(found.values()))[list(found).index((mixer, tokens))]))
            if numbers:
                numbers.parent.mkdir(parents=True, exist_ok=True)
                facts = {"torch": torch.__version__, "threads": args.threads, "dtype": "float32"}
                results = [asdict(m) for m in found.values()]
                numbers.write_text(json.dumps({**facts, "results": results}, indent=1) + "\n")
    if args.out:
        draw(with_ratios(list(found.values())), args.out)


if __name__ == "__main__":
    main()
