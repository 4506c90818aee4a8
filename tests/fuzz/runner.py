"""Run mutated inputs through the command line, each in a process of its own.

    python tests/fuzz/runner.py [--cases 500] [--seed 0] [--group run] [--keep FOLDER]

A case fails when the command shows a traceback, dies of a signal, hangs for over a minute, or ends
with another status than 0 (it worked), 1 (it could not), 2 (a mistake in what it was given).
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from mutations import GROUPS, Assets, Case, cases

SECONDS = 60
MEMORY_BYTES = 12 * 2**30


@dataclass(frozen=True)
class Outcome:
    """How a case ended; `fault` is empty for one that ended as it should."""

    case: Case
    status: int
    output: str
    fault: str


def import_all() -> None:
    """What the commands import, so that a forked process does not have to."""
    import gguf  # noqa: F401
    import pyarrow.parquet  # noqa: F401
    import torch
    import transformers  # noqa: F401

    import gatelm.cli.main
    import gatelm.hf.load
    import gatelm.report.model.page
    import gatelm.study.planning.plan
    import gatelm.train.trainer  # noqa: F401

    torch.set_num_threads(1)


def run_case(case: Case, folder: Path) -> Outcome:
    """Fork, run the command in `folder`, and judge how it ended."""
    folder.mkdir(parents=True)
    case.prepare(folder)
    log = folder / ".output"
    child = os.fork()
    if child == 0:
        _in_child(case, folder, log)
    started, status = time.monotonic(), None
    while time.monotonic() - started < SECONDS:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return Outcome(case, -1, _read(log), f"still running after {SECONDS} s")
    code = os.waitstatus_to_exitcode(status or 0)
    output = _read(log)
    return Outcome(case, code, output, _fault(code, output))


def _fault(code: int, output: str) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    if "Traceback (most recent call last)" in output:
        return "traceback: " + output.strip().splitlines()[-1][:200]
    if code not in (0, 1, 2):
        return f"exit status {code}"
    if code and not output.strip():
        return f"exit status {code} without a word"
    return ""


def _in_child(case: Case, folder: Path, log: Path) -> None:
    code = 99
    try:
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        out = os.open(log, os.O_WRONLY | os.O_CREAT)
        for target in (1, 2):
            os.dup2(out, target)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ["GATELM_CACHE"] = str(folder / ".cache")
        sys.argv = ["gatelm", *(os.fsdecode(word) for word in case.arguments)]
        from gatelm.cli.main import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def run_group(group: str, number: int, seed: int, root: Path, assets: Assets) -> list[Outcome]:
    """All cases of a group; folders of those that end well are removed."""
    outcomes = []
    for case in cases(group, number, seed, assets):
        outcome = run_case(case, root / case.name)
        outcomes.append(outcome)
        if not outcome.fault:
            shutil.rmtree(root / case.name)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--group", choices=GROUPS)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    import_all()
    root = options.keep or Path(tempfile.mkdtemp())
    assets = Assets(root / "assets")
    groups = [options.group] if options.group else GROUPS
    failed = 0
    for group in groups:
        outcomes = run_group(group, -(-options.cases // len(groups)), options.seed, root, assets)
        counted = Counter("failed" if o.fault else f"status {o.status}" for o in outcomes)
        print(group, dict(counted), flush=True)
        for outcome in (o for o in outcomes if o.fault):
            failed += 1
            words = " ".join(os.fsdecode(word)[:60] for word in outcome.case.arguments)
            print(f"  {outcome.case.name}: {outcome.fault}\n    gatelm {words!r}", flush=True)
    print(f"{failed} failed; folders of these: {root}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
