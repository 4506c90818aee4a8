"""Attention statistics in linear memory against attention matrices, on this machine.

Three parts, each measurement in a process of its own, in float32:

layer  one layer of SmolLM2-135M's shape (9 heads, 3 of keys, 64 channels) with random q and k:
       `analysis.statistics.streaming.attention_rows` against the softmax matrix and the same
       numbers reduced from it.
model  a whole Llama of that shape (30 layers) with random weights: `gatelm.analysis.measure.health`
       on transformers' model against the model called with output_attentions=True, its matrices
       reduced to the same numbers. Neither computes logits.
long   the first part's left side alone, at lengths whose matrices would not fit.

Peak memory is what the work adds to the resident memory of the process before it. Seconds are those
of the processor, which a busy machine does not stretch much. What would need more than --memory-gib
for its matrices is not run, and said so.

    python benchmarks/analysis_memory.py [--part layer|model|long|all] [--lengths 1024 2048 4096]
        [--long 32768 131072] [--threads 1] [--memory-gib 8] [--json]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

LAYERS, HEADS, KV_HEADS, WIDTH, HIDDEN, FFN, VOCAB = 30, 9, 3, 64, 576, 1536, 49152
WARM_UP_TOKENS = 32
Work = Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """One measurement; None where it was not run."""

    part: str
    method: str
    tokens: int
    layers: int
    peak_mib: float | None
    cpu_seconds: float | None
    wall_seconds: float | None
    matrices_mib: float
    """What the attention matrices alone take, all layers kept."""


def random_qk(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, tokens, HEADS, WIDTH, generator=generator)
    return q, torch.randn(1, tokens, KV_HEADS, WIDTH, generator=generator)


def layer_linear(tokens: int) -> Work:
    from gatelm.analysis.statistics.streaming import attention_rows
    from gatelm.nn.attention.masks import AttentionMask

    q, k = random_qk(tokens)
    return lambda: attention_rows(q, k, AttentionMask(tokens, tokens), scale=WIDTH**-0.5)


def layer_matrix(tokens: int) -> Work:
    q, k = random_qk(tokens)

    @torch.no_grad()
    def work() -> object:
        keys = k.transpose(1, 2).repeat_interleave(HEADS // KV_HEADS, dim=1)
        scores = q.transpose(1, 2) @ keys.transpose(2, 3) * WIDTH**-0.5
        hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        return scores.amax(dim=-1), reduce_matrix(weights)

    return work


def reduce_matrix(weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """First-token share, entropy, with and without the first key, importance, largest weight."""
    others = weights[..., 1:]
    rest = others / others.sum(dim=-1, keepdim=True).clamp(min=1e-12)
    return (
        weights[..., 0].clone(),
        torch.special.entr(weights).sum(dim=-1),
        torch.special.entr(rest).sum(dim=-1),
        weights.sum(dim=-2),
        weights.amax(dim=-1),
    )


def random_llama(attention: str):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        attn_implementation=attention,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).eval()


def random_ids(tokens: int) -> torch.Tensor:
    return torch.randint(0, VOCAB, (1, tokens), generator=torch.Generator().manual_seed(0))


def model_linear(tokens: int) -> Work:
    from gatelm.analysis.measure import health
    from gatelm.data.batch import Batch
    from gatelm.hf.probe.hf_probe import HFProbe

    probe, ids = HFProbe(random_llama("sdpa"), "random"), random_ids(tokens)
    return lambda: health(probe, [Batch(tokens=ids, targets=ids)])


def model_matrix(tokens: int) -> Work:
    model, ids = random_llama("eager"), random_ids(tokens)

    @torch.no_grad()
    def work() -> object:
        output = model.model(
            ids, output_attentions=True, output_hidden_states=True, use_cache=False
        )
        activations = [(h.abs().max(), h.abs().median()) for h in output.hidden_states]
        return [reduce_matrix(weights) for weights in output.attentions], activations

    return work


METHODS: dict[str, dict[str, Callable[[int], Work]]] = {
    "layer": {"gatelm": layer_linear, "matrices": layer_matrix},
    "model": {"gatelm": model_linear, "matrices": model_matrix},
    "long": {"gatelm": layer_linear},
}


def in_this_process(
    part: str, method: str, tokens: int, threads: int
) -> tuple[float, float, float]:
    """MiB of resident memory that the work adds (Linux), processor seconds and wall seconds."""
    torch.set_num_threads(threads)
    build = METHODS[part][method]
    build(WARM_UP_TOKENS)()  # everything imported and compiled before the measurement
    work = build(tokens)
    before = _status_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    started, started_cpu = time.perf_counter(), time.process_time()
    work()
    seconds = time.process_time() - started_cpu, time.perf_counter() - started
    return (_status_kib("VmHWM") - before) / 1024, *seconds


def _status_kib(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def measure(part: str, method: str, tokens: int, threads: int, memory_gib: float) -> Measured:
    """In a fresh process, if its matrices fit."""
    layers = LAYERS if part == "model" else 1
    matrices = layers * HEADS * tokens**2 * 4 / 2**20
    if method == "matrices" and matrices > memory_gib * 1024:
        return Measured(part, method, tokens, layers, None, None, None, matrices)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(in_this_process, (part, method, tokens, threads))
    return Measured(part, method, tokens, layers, *found, matrices)


def line(found: Measured) -> str:
    start = f"{found.part:<6} {found.tokens:>7,} tokens  {found.method:<9}"
    if found.peak_mib is None:
        return f"{start} not run: its matrices alone take {found.matrices_mib:,.0f} MiB"
    return (
        f"{start} {found.peak_mib:>9,.1f} MiB, {found.peak_mib * 1024 / found.tokens:,.1f} KiB a "
        f"token, {found.cpu_seconds:,.2f} s (matrices alone: {found.matrices_mib:,.0f} MiB)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=[*METHODS, "all"], default="all")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--long", type=int, nargs="+", default=[32768, 131072])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--memory-gib", type=float, default=8.0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = []
    for part in METHODS if args.part == "all" else [args.part]:
        for tokens in args.long if part == "long" else args.lengths:
            for method in METHODS[part]:
                found = measure(part, method, tokens, args.threads, args.memory_gib)
                results.append(asdict(found))
                if not args.json:
                    print(line(found), flush=True)
    if args.json:
        facts = {"torch": torch.__version__, "threads": args.threads, "dtype": "float32"}
        print(json.dumps({**facts, "results": results}, indent=1))


if __name__ == "__main__":
    main()
