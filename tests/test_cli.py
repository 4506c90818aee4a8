"""The command line as a user meets it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import gatelm
from gatelm.cli import main as main_module


def gatelm_command(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gatelm", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=120)


def test_version() -> None:
    assert gatelm_command("--version").stdout == f"gatelm {gatelm.__version__}\n"


@pytest.mark.parametrize("verb", ["train", "study", "data", "info", "config"])
def test_help_names_every_verb_and_teaches(verb: str) -> None:
    assert verb in gatelm_command("--help").stdout
    assert len(gatelm_command(verb, "--help").stdout.splitlines()) > 8


def test_help_imports_nothing_heavy() -> None:
    names = ("torch", "numpy", "rich")
    code = f"import sys, gatelm.cli.main; print([m for m in {names} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() in ("[]", "['rich']"), found.stdout


def test_info_gives_the_published_sizes_without_weights() -> None:
    plain = json.loads(gatelm_command("info", "models/paper-1.7b-28l", "--json").stdout)
    assert round(plain["parameters"]["total"] / 1e6, 2) == 1720.84
    gated = ["--set", "layer.gates=[sdpa-element]", "--set", "layer.ffn.ffn_dim=5504"]
    element = json.loads(gatelm_command("info", "models/paper-1.7b-28l", *gated, "--json").stdout)
    assert round(element["parameters"]["total"] / 1e6, 2) == 1728.18
    assert element["parameters"]["gate"] == 117_440_512
    assert element["kv_bytes_per_token"] == plain["kv_bytes_per_token"]


def test_config_show_says_where_values_came_from() -> None:
    shown = gatelm_command("config", "show", "runs/demo-text", "--set", "optim.lr=1e-2").stdout
    lines = {line.split(":")[0]: line for line in shown.splitlines()}
    assert lines["optim.lr"].endswith("# --set optim.lr=1e-2")
    assert lines["train.total_steps"].endswith("# demo-text.yaml")
    assert lines["model.hidden_dim"].endswith("# study-text.yaml")
    assert lines["data.source"].endswith("# text.yaml")
    assert lines["train.precision"].endswith("# default")
    assert lines["optim.eps"].endswith("# default")


def test_config_diff() -> None:
    same = gatelm_command("config", "diff", "runs/text")
    assert same.stdout == "no difference\n"
    rows = json.loads(
        gatelm_command("config", "diff", "runs/text", "--set", "optim.lr=1", "--json").stdout
    )
    assert rows == [{"path": "optim.lr", "left": 0.003, "right": 1.0}]


def test_config_gates_lists_presets() -> None:
    assert "sdpa-element" in gatelm_command("config", "gates").stdout


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("train", "nothing.yaml"), "no recipe 'nothing.yaml'"),
        (("train", "runs/text", "--set", "optim.rl=1"), "did you mean 'lr'?"),
        (("train", "runs/text", "--set", "model.layer.mixer.num_heads=3"), "not a multiple of 3"),
        (("train", "runs/text", "--set", "data.source=/no/such/file.txt"), "/no/such/file.txt"),
        (("train", "demo"), "gatelm study run demo"),
        (("train", "models/paper-1.7b-28l"), "a model, not a run"),
        (("info", "demo"), "gatelm study plan demo"),
        (("study", "run", "runs/text"), "model"),
        (("study", "plan", "demo", "--set", "parts.mechansim.seeds=[1]"), "'mechanism'"),
        (("study", "report", "/no/such/folder"), "no study.yaml"),
        (("data", "prepare", "/no/such/file.txt"), "/no/such/file.txt"),
        (("config", "show", "runs/text", "--set", "model.layer.gates=[nope]"), "nope"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_mistakes_are_one_sentence(args: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    done = gatelm_command(*args, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()], "nothing is left behind"


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_too_little_memory_is_one_sentence(monkeypatch, capsys, text):
    def fail():
        raise RuntimeError(text)

    monkeypatch.setattr(main_module, "app", fail)
    monkeypatch.setattr(sys, "argv", ["gatelm"])
    with pytest.raises(SystemExit) as ended:
        main_module.main()
    assert ended.value.code == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: too little memory for this")
    assert "Traceback" not in shown


STOPPED = """
    import signal, sys
    from pathlib import Path
    from gatelm.cli import main
    from gatelm.io.folders import whole_folder

    def work():
        with whole_folder(Path(sys.argv[1])) as unfinished:
            (unfinished / "a").write_text("half")
            signal.raise_signal(getattr(signal, sys.argv[2]))

    main.app = work
    main.main()
"""


@pytest.mark.parametrize("name", ["SIGHUP", "SIGTERM", "SIGINT"])
def test_any_command_ends_on_a_signal_and_leaves_nothing_half(tmp_path: Path, name: str) -> None:
    script = textwrap.dedent(STOPPED)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "out"), name],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 128 + getattr(signal, name), done.stderr
    assert done.stderr == f"stopped by {name}\n"
    assert list(tmp_path.iterdir()) == []
