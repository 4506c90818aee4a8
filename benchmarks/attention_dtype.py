"""Forward and backward of torch's CPU attention in bf16, in fp32, and in fp32 with casts around it.

python benchmarks/attention_dtype.py [--threads 1]
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

SHAPES = [(64, 1, 32, 128), (16, 4, 128, 32), (16, 4, 256, 64), (4, 8, 512, 64), (1, 8, 2048, 64)]


def milliseconds(shape: tuple[int, int, int, int], stored: torch.dtype, used: torch.dtype) -> float:
    """Best of 15 forward-backward passes for (batch, heads, tokens, head width)."""
    q, k, v = (torch.randn(shape).to(stored).requires_grad_() for _ in range(3))
    best = float("inf")
    for _ in range(15):
        started = time.perf_counter()
        heads = (t.to(used) for t in (q, k, v))
        y = scaled_dot_product_attention(*heads, is_causal=True)
        y.to(stored).sum().backward()
        best = min(best, time.perf_counter() - started)
    return 1e3 * best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    bf16, fp32 = torch.bfloat16, torch.float32
    print("batch, heads, tokens, head width: ms in bf16, in fp32, in fp32 from and to bf16")
    for shape in SHAPES:
        times = [
            milliseconds(shape, *kinds) for kinds in ((bf16, bf16), (fp32, fp32), (bf16, fp32))
        ]
        print(f"{shape!s:<20} " + "  ".join(f"{t:8.2f}" for t in times), flush=True)


if __name__ == "__main__":
    main()
