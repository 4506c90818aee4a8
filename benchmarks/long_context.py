"""Memory and time of the loss of one long text, read in chunks, on this machine.

A decoder of SmolLM2-135M's shape (30 layers, 9 heads of 64 channels, 3 of keys, vocabulary 49,152)
with random weights reads random tokens, as `gatelm eval --by-position` does. Each length runs in a
process of its own, in float32. `--layers` shortens the model: time is nearly proportional to the
layers; keys and values are, the rest of the memory (weights of the embedding, a chunk, a block of
logits) is not.

Added memory is the peak of the resident memory while reading less what is resident before it, with
the model; the peak is given beside it. Seconds are those of the processor, which a busy machine
does not stretch much.

    python benchmarks/long_context.py [OUT] [--lengths 4k,16k,64k,128k] [--layers 30]
        [--chunk 1024] [--gates sdpa-element] [--threads 1]

4k take half a minute of one core, 16k some minutes, 64k more than half an hour, 128k two hours.
With OUT each length is kept there when it ends, the same command goes on from there, and README.md
has the table, the text of reading.md in front of it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from gatelm.cli.eval.by_position import parse_lengths, show_length
from gatelm.config.load import load, packaged_recipes
from gatelm.inference.prefill import DecoderPrefill, token_losses
from gatelm.io.files import write_json, write_text
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig

MIB = 2**20


@dataclass(frozen=True)
class Measured:
    """One length."""

    tokens: int
    layers: int
    chunk_tokens: int
    gates: list[str]
    threads: int
    cpu_seconds: float
    wall_seconds: float
    added_mib: float
    resident_mib: float
    cache_mib: float
    """Keys and values, as the shape has them."""


def config(layers: int, gates: list[str]) -> ModelConfig:
    """SmolLM2-135M's shape with so many layers."""
    tree = load(packaged_recipes() / "models" / "smollm2-135m.yaml").tree
    tree["num_layers"] = layers
    tree["layer"]["gates"] = gates
    return ModelConfig.parse(tree)


def measure(layers: int, gates: list[str], tokens: int, chunk: int, threads: int) -> Measured:
    """Read `tokens` random tokens once."""
    torch.set_num_threads(threads)
    cfg = config(layers, gates)
    model = Decoder(cfg)
    init_weights(model, 0)
    model.eval()
    assert cfg.vocab_size is not None
    text = torch.randint(cfg.vocab_size, (tokens,), generator=torch.Generator().manual_seed(0))
    before, cpu, wall = _resident_mib(), time.process_time(), time.monotonic()
    with _bar() as bar:
        task = bar.add_task(f"{show_length(tokens)} tokens", total=_work(tokens))
        losses = token_losses(
            DecoderPrefill(model),
            text,
            chunk_tokens=chunk,
            report=lambda done: bar.update(task, completed=_work(done)),
        )
    cpu, wall, peak = time.process_time() - cpu, time.monotonic() - wall, _peak_mib()
    assert losses.isfinite().all()
    mixer = cfg.layer.mixer
    assert mixer.kind == "attention"
    cache = 2 * layers * mixer.kv_heads * mixer.width(cfg.hidden_dim) * 4 * tokens / MIB
    return Measured(tokens, layers, chunk, gates, threads, cpu, wall, peak - before, peak, cache)


def _bar() -> Progress:
    console = Console(stderr=True)
    return Progress(console=console, disable=not console.is_terminal)


def _work(done: int, per_token: int = 20_000) -> float:
    """What reading so many tokens costs, in keys seen; `per_token` is the rest of the model's."""
    return done * per_token + done * done / 2


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _worker(connection, *arguments) -> None:
    connection.send(measure(*arguments))


def in_a_process(*arguments) -> Measured:
    """`measure` in a fresh process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_worker, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        raise SystemExit("a measurement died; there may be too little memory") from None
    finally:
        process.join()


def table(found: list[Measured]) -> str:
    """Markdown, a row a length."""
    lines = [
        "| tokens | CPU seconds | tokens/s | added memory | peak | keys and values |",
        "|---|---|---|---|---|---|",
    ]
    for m in sorted(found, key=lambda m: m.tokens):
        lines.append(
            f"| {show_length(m.tokens)} | {m.cpu_seconds:,.0f} | {m.tokens / m.cpu_seconds:,.0f} | "
            f"{m.added_mib:,.0f} MiB | {m.resident_mib:,.0f} MiB | {m.cache_mib:,.0f} MiB |"
        )
    return "\n".join(lines)


def report(out: Path) -> None:
    """README.md, from all that is in the folder."""
    runs = [Measured(**json.loads(file.read_text())) for file in (out / "runs").glob("*.json")]
    reading = out / "reading.md"
    parts = [reading.read_text(encoding="utf-8").rstrip()] if reading.is_file() else []
    kinds: dict[tuple[int, tuple[str, ...], int, int], list[Measured]] = {}
    for m in runs:
        kinds.setdefault((m.layers, tuple(m.gates), m.chunk_tokens, m.threads), []).append(m)
    for (layers, gates, chunk, threads), found in sorted(kinds.items(), key=lambda kind: kind[0]):
        gated = f"gates {', '.join(gates)}" if gates else "no gate"
        parts.append(f"## {layers} layers, {gated}, chunks of {chunk}, {threads} thread(s)")
        parts.append(table(found))
    write_text(out / "README.md", "\n\n".join(parts) + "\n")


def main() -> None:
    """Measure, keep and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--lengths", default="4k,16k,64k,128k")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--chunk", type=int, default=1024)
    parser.add_argument("--gates", nargs="*", default=[])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    config(options.layers, options.gates)  # refuses a wrong gate before anything runs
    found = []
    for tokens in parse_lengths(options.lengths):
        shape = [options.layers, options.gates, tokens, options.chunk, options.threads]
        if options.out is None:
            found.append(in_a_process(*shape))
            continue
        gates = "+".join(options.gates) or "none"
        name = f"{options.layers}-{gates}-{tokens}-{options.chunk}-{options.threads}.json"
        file = options.out / "runs" / name
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, asdict(in_a_process(*shape)))
            report(options.out)
        found.append(Measured(**json.loads(file.read_text())))
    print(f"{options.layers} layers, chunks of {options.chunk}, {options.threads} thread(s)")
    print(table(found))


if __name__ == "__main__":
    main()
