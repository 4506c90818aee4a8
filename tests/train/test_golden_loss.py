"""The first losses of a tiny model per gate, against stored ones.

A change of these numbers is a change of what is computed: a refactor must leave them alone. After
an intended change, write them anew and say why in the commit:

    python tests/train/test_golden_loss.py
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python tests/train/test_golden_loss.py
    ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 python tests/train/test_golden_loss.py

The files are keyed by torch's minor version and the CPU's vector instructions, since both choose
kernels. Within one key the last bits still differ between CPU models, whose caches set the block
sizes and so the order of sums. Other orders (micro-batches of another size, the eager backend)
moved these losses by up to 2.4e-7 of their value, small real changes by more: beta2 0.95 to 0.951
by 4.5e-5, the learning rate by a thousandth 1.6e-4. Hence a relative tolerance of 1e-5.
"""

import json
from pathlib import Path

import pytest
import torch

from gatelm.data.source import build_source
from gatelm.optim.schedule import lr
from gatelm.train.config import RunConfig
from gatelm.train.parallel import World
from gatelm.train.setup import new_state
from gatelm.train.step import train_step

GATES = [
    "none",
    "sdpa-element",
    "sdpa-head",
    "sdpa-nonsparse",
    "sdpa-input-independent",
    "value",
    "query",
    "output",
    "learned-sink",
]
STEPS = 30
FOLDER = Path(__file__).parents[1] / "golden"
TORCH = ".".join(torch.__version__.split(".")[:2])
CPU = torch.backends.cpu.get_cpu_capability()
FILE = FOLDER / f"losses-torch-{TORCH}-{CPU}.json"


def run_config(gate):
    return RunConfig.parse(
        {
            "seed": 3,
            "model": {
                "hidden_dim": 32,
                "num_layers": 2,
                "layer": {
                    "mixer": {
                        "num_heads": 4,
                        "num_kv_heads": 2,
                        "head_dim": 8,
                        "backend": "eager" if gate == "learned-sink" else "sdpa",
                    },
                    "ffn": {"kind": "swiglu", "ffn_dim": 48},
                    "gates": [] if gate == "none" else [gate],
                },
            },
            "data": {"kind": "bigram_backcopy", "num_tokens": 32, "seq_len": 32},
            "optim": {"lr": 3e-3, "schedule": {"kind": "cosine", "warmup_steps": 5}},
            "train": {
                "total_steps": STEPS,
                "batch_size": 8,
                "micro_batch_size": 4,
                "precision": "fp32",
            },
        }
    )


def losses(cfg):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = World(torch.device("cpu"))
        source = build_source(cfg.data, cfg.seed)
        state = new_state(cfg, source, alone)
        out = []
        for step in range(STEPS):
            outcome = train_step(
                state,
                source.batch(step, batch_size=cfg.train.batch_size),
                lr=lr(cfg.optim, step, STEPS),
                grad_clip=cfg.optim.grad_clip,
                cfg=cfg.train,
                world=alone,
            )
            out.append(outcome.loss)
        return out
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("gate", GATES)
def test_losses_equal_the_stored_ones(gate):
    if not FILE.is_file():
        pytest.skip(f"no golden losses for torch {TORCH} on a CPU with {CPU}")
    stored = json.loads(FILE.read_text())[gate]
    assert losses(run_config(gate)) == pytest.approx(stored, rel=1e-5)


def write():
    FOLDER.mkdir(exist_ok=True)
    values = {gate: losses(run_config(gate)) for gate in GATES}
    lines = [f" {json.dumps(gate)}: {json.dumps(values[gate])}" for gate in GATES]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"wrote {FILE}")


if __name__ == "__main__":
    write()
