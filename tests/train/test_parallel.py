import json
import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from gatelm.config import ConfigError
from gatelm.config.load import dump
from gatelm.train.parallel import BUCKET_BYTES, World, _buckets, world
from gatelm.train.trainer import train
from gatelm.train.watching.metrics import read_metrics

RANK = """
    import sys
    from pathlib import Path
    import torch
    from gatelm.config.load import load
    from gatelm.train.config import RunConfig
    from gatelm.train.trainer import train

    torch.set_num_threads(1)
    result = train(RunConfig.parse(load(sys.argv[1], sys.argv[3:]).tree), Path(sys.argv[2]))
    print(result.status, result.steps)
"""


def run_two(cfg, recipe, folder, *overrides):
    """Train in two gloo processes, started as torchrun would."""
    recipe.write_text(dump(cfg.tree()))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = textwrap.dedent(RANK)
    line = [sys.executable, "-c", script, str(recipe), str(folder), *overrides]
    base = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            line,
            env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    done = [process.communicate(timeout=120) for process in ranks]
    assert [p.returncode for p in ranks] == [0, 0], done
    return [out.strip() for out, _ in done]


def trace(folder, kind, *keys):
    return [[r[k] for k in keys] for r in read_metrics(folder / "metrics.jsonl", kind)]


@pytest.mark.slow
def test_two_processes_train_like_one(tiny, tmp_path):
    """On text rows hold unequal numbers of targets, so means of means would differ."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for index in range(40):
        (corpus / f"{index:02d}.txt").write_text("gate " * (1 + index % 9))
    tree = {
        "data": {"kind": "text", "source": str(corpus), "tokenizer": {"kind": "byte"},
                 "seq_len": 32, "packing": "best_fit", "cache": str(tmp_path / "cache")},
        "train": {"total_steps": 8, "batch_size": 6, "micro_batch_size": 2, "eval_every_steps": 4,
                  "health_every_steps": 4},
    }  # fmt: skip
    cfg = tiny(tree)
    train(cfg, tmp_path / "one")
    recipe, folder = tmp_path / "r.yaml", tmp_path / "two"
    assert run_two(cfg, recipe, folder, "train.stop_at_step=3") == ["stopped 3", "stopped 3"]
    assert run_two(cfg, recipe, folder) == ["finished 8", "finished 8"]
    for kind, key in (("train", "loss"), ("train", "grad_norm"), ("eval", "val_loss")):
        one = trace(tmp_path / "one", kind, "step", key)
        assert torch.allclose(
            torch.tensor(trace(folder, kind, "step", key)), torch.tensor(one), rtol=1e-4
        )
    tokens = trace(folder, "train", "step", "tokens")
    assert tokens == trace(tmp_path / "one", "train", "step", "tokens")
    assert json.loads((folder / "run.json").read_text())["processes"] == 2


@pytest.mark.slow
def test_routers_of_two_processes_are_one(tiny, tmp_path, fake_analysis):
    """The balance loss takes the choices of both; rows are shared unequally, 2 and 1."""
    ffn = {"kind": "moe", "num_experts": 4, "top_k": 2, "ffn_dim": 8, "shared": {"ffn_dim": 8}}
    tree = {
        "model": {"layer": {"ffn": ffn}},
        "train": {"total_steps": 4, "batch_size": 3, "router": {"balance": 0.5}},
    }
    cfg = tiny(tree)
    train(cfg, tmp_path / "one")
    run_two(cfg, tmp_path / "r.yaml", tmp_path / "two", "train.micro_batch_size=1")
    for key in ("loss", "grad_norm", "balance_loss", "router_z_loss"):
        one, two = (trace(tmp_path / name, "train", key) for name in ("one", "two"))
        assert torch.allclose(torch.tensor(one), torch.tensor(two), rtol=1e-4), key
    loads = [trace(tmp_path / name, "train", "expert_load") for name in ("one", "two")]
    assert loads[0] == loads[1]


def test_alone_nothing_is_exchanged(tiny):
    alone = World(torch.device("cpu"))
    assert alone.is_main
    assert alone.sums([1.5, 2.0]) == [1.5, 2.0]
    assert alone.gather("x") == ["x"]
    assert alone.any(True)
    assert not alone.any(False)


def test_buckets_hold_every_trainable_parameter_once_by_dtype():
    big = nn.Parameter(torch.empty(BUCKET_BYTES // 4))
    small = [nn.Parameter(torch.empty(3)) for _ in range(3)]
    half = nn.Parameter(torch.empty(3, dtype=torch.bfloat16))
    frozen = nn.Parameter(torch.empty(3), requires_grad=False)
    buckets = list(_buckets([small[0], small[1], frozen, big, small[2], half]))
    assert [[id(p) for p in bucket] for bucket in buckets] == [
        [id(small[0]), id(small[1])],
        [id(big)],
        [id(small[2])],
        [id(half)],
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_one_sentence():
    with pytest.raises(ConfigError, match=r"train.device: cuda cannot be used here"), world("cuda"):
        pass


KILLED = """
    import os, signal, sys
    from gatelm.cli import main
    from gatelm.train import trainer

    if os.environ["RANK"] == "0":
        step = trainer.train_step
        def dying(*args, **settings):
            if args[0].step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return step(*args, **settings)
        trainer.train_step = dying
    sys.argv = ["gatelm", "train", *sys.argv[1:]]
    main.main()
"""


@pytest.mark.slow
def test_when_one_process_dies_the_others_say_so_and_end(tiny, tmp_path):
    recipe = tmp_path / "r.yaml"
    recipe.write_text(dump(tiny({"train": {"batch_size": 6, "total_steps": 50}}).tree()))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    line = [
        sys.executable,
        "-c",
        textwrap.dedent(KILLED),
        str(recipe),
        "--out",
        str(tmp_path / "r"),
    ]
    both = [
        subprocess.Popen(
            line,
            env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [-signal.SIGKILL, 1]
    (sentence,) = [one for one in said[1].splitlines() if one.startswith("error: ")]
    assert "process 1 of 2: another process of this training has ended" in sentence
    assert "Traceback" not in said[1]
