"""Memory and time of the loss of one long text, read in chunks, on this machine.

A decoder of SmolLM2-135M's shape (30 layers, 9 heads of 64 channels, 3 of keys, vocabulary 49,152)
with random weights reads random tokens, as `gatelm eval --by-position` does. Each length runs in a
process of its own, in float32. `--layers` shortens the model: time is nearly proportional to the
layers; keys and values are, the rest of the memory (weights of the embedding, a chunk, a block of
logits) is not.

Peak memory is what reading adds to the resident memory of the process with the model in it, and
the whole resident memory beside it. Seconds are those of the processor, which a busy machine does
not stretch much.

    python benchmarks/long_context.py [--lengths 4k,16k,64k,128k] [--layers 30] [--chunk 1024]
        [--gates sdpa-element] [--threads 1] [--json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.progress import track

from gatelm.analysis.prefill import DecoderPrefill, token_losses
from gatelm.cli.eval_long import parse_lengths, show_length
from gatelm.config.load import load, packaged_recipes
from gatelm.nn.init import init_weights
from gatelm.nn.model import Decoder, ModelConfig

MIB = 2**20


@dataclass(frozen=True)
class Measured:
    """One length."""

    tokens: int
    layers: int
    cpu_seconds: float
    tokens_per_second: float
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


def measure(
    cfg: ModelConfig, tokens: int, chunk: int, threads: int, device: str = "cpu"
) -> Measured:
    """Read `tokens` random tokens once."""
    torch.set_num_threads(threads)
    model = Decoder(cfg)
    init_weights(model, 0)
    model.eval().to(device)
    assert cfg.vocab_size is not None
    text = torch.randint(cfg.vocab_size, (tokens,), generator=torch.Generator().manual_seed(0))
    before, started = _resident_mib(), time.process_time()
    losses = token_losses(DecoderPrefill(model), text, chunk_tokens=chunk)
    seconds, after = time.process_time() - started, _resident_mib()
    assert losses.isfinite().all()
    mixer = cfg.layer.mixer
    assert mixer.kind == "attention"
    per_token = 2 * cfg.num_layers * mixer.kv_heads * mixer.width(cfg.hidden_dim) * 4
    return Measured(
        tokens,
        cfg.num_layers,
        seconds,
        tokens / seconds,
        after - before,
        after,
        per_token * tokens / MIB,
    )


def _resident_mib() -> float:
    """The largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _worker(connection, *arguments) -> None:
    connection.send(measure(*arguments))


def in_a_process(*arguments) -> Measured:
    """`measure` in a fresh process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_worker, args=(theirs, *arguments))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        raise SystemExit("a measurement died; there may be too little memory") from None
    finally:
        process.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lengths", default="4k,16k,64k,128k")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--chunk", type=int, default=1024)
    parser.add_argument("--gates", nargs="*", default=[])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cfg, lengths = config(options.layers, options.gates), parse_lengths(options.lengths)
    console = Console(stderr=True)
    found = [
        in_a_process(cfg, tokens, options.chunk, options.threads)
        for tokens in track(lengths, "lengths", console=console, disable=not console.is_terminal)
    ]
    if options.json:
        print(json.dumps([asdict(m) for m in found]))
        return
    print(f"{options.layers} layers, chunks of {options.chunk}, {options.threads} thread(s)")
    print("| tokens | CPU seconds | tokens/s | added memory | resident | keys and values |")
    print("|---|---|---|---|---|---|")
    for m in found:
        print(
            f"| {show_length(m.tokens)} | {m.cpu_seconds:,.0f} | {m.tokens_per_second:,.0f} | "
            f"{m.added_mib:,.0f} MiB | {m.resident_mib:,.0f} MiB | {m.cache_mib:,.0f} MiB |"
        )


if __name__ == "__main__":
    main()
