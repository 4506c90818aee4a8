"""A training step of gatelm against transformers' Qwen3.5 of the same shape, on this machine.

Both models have elementwise gated full attention, QK-norm, SwiGLU and as many parameters; both take
the same AdamW step on the same tokens. Steps alternate in one process, so that the ratio of their
times survives a noisy machine; peak memory is measured in a process of its own for each.

    python benchmarks/train_step.py [--shape small|medium|all] [--rounds 12] [--json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn


@dataclass(frozen=True)
class Shape:
    hidden_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int
    seq_len: int
    batch_size: int


SHAPES = {
    "small": Shape(256, 6, 4, 2, 64, 704, 4096, 256, 16),
    "medium": Shape(512, 8, 8, 4, 64, 1408, 8192, 512, 4),
}
Loss = Callable[[torch.Tensor], torch.Tensor]


def build_ours(shape: Shape) -> tuple[nn.Module, Loss]:
    """gatelm's model, with Qwen3.5's choices as config values, and the trainer's own loss."""
    from gatelm.data.batch import Batch
    from gatelm.nn.init import init_weights
    from gatelm.nn.model import Decoder, ModelConfig
    from gatelm.train.loss import sum_loss

    norm = {"weight": "zero_centred"}
    cfg = ModelConfig.parse(
        {
            "vocab_size": shape.vocab_size,
            "hidden_dim": shape.hidden_dim,
            "num_layers": shape.num_layers,
            "head": "untied",
            "final_norm": norm,
            "layer": {
                "mixer": {
                    "num_heads": shape.num_heads,
                    "num_kv_heads": shape.num_kv_heads,
                    "head_dim": shape.head_dim,
                    "qk_norm": norm,
                    "rope": {"partial_factor": 0.25},
                },
                "ffn": {"kind": "swiglu", "ffn_dim": shape.ffn_dim},
                "norm": norm,
                "gates": [{"site": "sdpa", "compute_dtype": "input"}],
            },
        }
    )
    model = Decoder(cfg)
    init_weights(model, 0)

    def loss(rows: torch.Tensor) -> torch.Tensor:
        batch = Batch(tokens=rows[:, :-1], targets=rows[:, 1:])
        return sum_loss(model, batch) / batch.targets.numel()

    return model, loss


def build_theirs(shape: Shape) -> tuple[nn.Module, Loss]:
    """transformers' Qwen3.5 text model, every layer full attention."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    cfg = Qwen3_5TextConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_dim,
        intermediate_size=shape.ffn_dim,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        layer_types=["full_attention"] * shape.num_layers,
        tie_word_embeddings=False,
        use_cache=False,
    )
    model = Qwen3_5ForCausalLM(cfg)

    def loss(rows: torch.Tensor) -> torch.Tensor:
        # one token more than is predicted, so that both models process as many
        return model(input_ids=rows[:, :-1], labels=rows[:, :-1], use_cache=False).loss

    return model, loss


BUILDERS = {"gatelm": build_ours, "transformers": build_theirs}


def make_step(
    name: str, shape: Shape, precision: str
) -> tuple[Callable[[torch.Tensor], None], int]:
    """A function that takes one training step, and the model's parameters."""
    torch.manual_seed(0)
    model, loss_of = BUILDERS[name](shape)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)

    def step(rows: torch.Tensor) -> None:
        context = (
            torch.autocast("cpu", dtype=torch.bfloat16)
            if precision == "bf16"
            else contextlib.nullcontext()
        )
        with context:
            loss = loss_of(rows)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, sum(p.numel() for p in model.parameters())


def rows_of(shape: Shape) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    size = (shape.batch_size, shape.seq_len + 1)
    return torch.randint(0, shape.vocab_size, size, generator=generator)


def peak_memory(name: str, shape: Shape, precision: str, threads: int) -> float:
    """MiB of resident memory that the model and three steps add; for a fresh process, on Linux."""
    torch.set_num_threads(threads)
    BUILDERS[name](Shape(8, 1, 1, 1, 8, 8, 8, 8, 1))  # everything imported before the measurement
    before = _status_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    step, _ = make_step(name, shape, precision)
    for _ in range(3):
        step(rows_of(shape))
    return (_status_kib("VmHWM") - before) / 1024


def _status_kib(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def in_fresh_process(*args: object) -> float:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(peak_memory, args)


def compare(label: str, shape: Shape, precision: str, rounds: int, threads: int) -> dict:
    """Alternating steps: tokens/s by the median step, and the median of the paired ratios."""
    steps = {name: make_step(name, shape, precision) for name in BUILDERS}
    rows = rows_of(shape)
    seconds: dict[str, list[float]] = {name: [] for name in BUILDERS}
    for index in range(rounds + 2):
        order = list(BUILDERS) if index % 2 else list(reversed(BUILDERS))
        for name in order:
            started = time.perf_counter()
            steps[name][0](rows)
            if index >= 2:
                seconds[name].append(time.perf_counter() - started)
    tokens = shape.batch_size * shape.seq_len
    memory = {n: in_fresh_process(n, shape, precision, threads) for n in BUILDERS}
    pairs = zip(seconds["transformers"], seconds["gatelm"], strict=True)
    return {
        "shape": label,
        **asdict(shape),
        "precision": precision,
        "threads": threads,
        "parameters": {name: steps[name][1] for name in BUILDERS},
        "tokens_per_second": {n: tokens / statistics.median(s) for n, s in seconds.items()},
        "speed_ratio": statistics.median(theirs / ours for theirs, ours in pairs),
        "peak_memory_mib": memory,
        "memory_ratio": memory["gatelm"] / memory["transformers"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=[*SHAPES, "all"], default="all")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = []
    for label in SHAPES if args.shape == "all" else [args.shape]:
        for precision in ("fp32", "bf16"):
            result = compare(label, SHAPES[label], precision, args.rounds, args.threads)
            results.append(result)
            if not args.json:
                ours, theirs = (result["tokens_per_second"][n] for n in BUILDERS)
                memory = result["peak_memory_mib"]
                print(
                    f"{label:<7} {precision}  gatelm {ours:>7,.0f} tokens/s, transformers "
                    f"{theirs:>7,.0f}: {result['speed_ratio']:.2f}x; peak memory "
                    f"{memory['gatelm']:,.0f} and {memory['transformers']:,.0f} MiB: "
                    f"{result['memory_ratio']:.2f}x",
                    flush=True,
                )
    if args.json:
        print(json.dumps({"torch": torch.__version__, "results": results}, indent=1))


if __name__ == "__main__":
    main()
