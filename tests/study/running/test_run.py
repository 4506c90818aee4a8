"""Worker processes: skipping, resuming, failing, dying and stopping."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gatelm.config import ConfigError
from gatelm.io.locks import exclusive
from gatelm.study.results.collect import write_results
from gatelm.study.running.progress import PlainDisplay
from gatelm.study.running.run import run


class Recorder(PlainDisplay):
    """Remembers what the scheduler said."""

    def __init__(self):
        super().__init__()
        self.lines: list[str] = []

    def _line(self, text, style=""):
        self.lines.append(text)


def starts(plan, root):
    """The steps each run was begun at, by label."""
    out = {}
    for planned in plan.runs:
        path = root / planned.folder / "starts"
        lines = path.read_text().splitlines() if path.exists() else []
        out[planned.label] = [int(line.split()[0]) for line in lines]
    return out


def test_trains_all_skips_what_is_done_and_resumes_what_was_begun(
    make_fake_plan, tmp_path, trainer
):
    plan = make_fake_plan()
    begun = tmp_path / plan.runs[1].folder
    begun.mkdir(parents=True)
    (begun / "step").write_text("2")
    outcome = run(plan, tmp_path, workers=1, command="the command", trainer=trainer)
    assert outcome.finished == list(plan.runs)
    assert starts(plan, tmp_path) == {
        "main/none/seed 0": [0],
        "main/none/seed 1": [2],
        "main/low/seed 0": [0],
        "main/low/seed 1": [0],
    }
    assert "said by the trainer" in (begun / "output.log").read_text()
    assert (tmp_path / "command.txt").read_text() == "the command\n"

    (tmp_path / plan.runs[2].folder / "result.json").unlink()
    display = Recorder()
    outcome = run(plan, tmp_path, workers=1, trainer=trainer, display=display)
    assert len(outcome.finished) == 4
    assert [len(s) for s in starts(plan, tmp_path).values()] == [1, 1, 2, 1]
    assert display.lines[0].startswith("tiny: 1 run to train (3 of 4 are done), 1 at a time")


def test_a_result_of_another_config_is_no_result(make_fake_plan, tmp_path, trainer):
    plan = make_fake_plan(arms={"none": {}}, seeds=[0])
    folder = tmp_path / plan.runs[0].folder
    folder.mkdir(parents=True)
    (folder / "result.json").write_text('{"status": "finished", "config_hash": "something else"}')
    run(plan, tmp_path, trainer=trainer)
    assert starts(plan, tmp_path) == {"main/none/seed 0": [0]}


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [("raises", "the trainer's own words"), ("dies", "its process was killed by SIGKILL; often")],
)
def test_a_failed_run_is_recorded_and_the_rest_goes_on(
    make_fake_plan, tmp_path, trainer, behaviour, message
):
    plan = make_fake_plan(arms={"none": {}, "bad": {}}, behaviour={"bad": behaviour})
    outcome = run(plan, tmp_path, workers=1, trainer=trainer)
    assert [r.arm for r in outcome.finished] == ["none", "none"]
    assert all(message in error for error in outcome.failed.values())
    results = write_results(plan, tmp_path)
    assert [r.status for r in results.runs] == ["finished"] * 2 + ["failed"] * 2
    assert message in results.runs[2].error
    failure = (tmp_path / plan.runs[2].folder / "failure.txt").read_text()
    assert ("Traceback" in failure) == (behaviour == "raises")
    if behaviour == "raises":
        for planned in plan.runs:
            (tmp_path / planned.folder / "mended").touch()
        assert len(run(plan, tmp_path, workers=1, trainer=trainer).finished) == 4
        assert not (tmp_path / plan.runs[2].folder / "failure.txt").exists()


def test_a_trainer_that_cannot_be_imported_fails_every_run(make_fake_plan, tmp_path):
    outcome = run(make_fake_plan(seeds=[0]), tmp_path, workers=1, trainer="no_such_module:train")
    assert ["No module named 'no_such_module'" in e for e in outcome.failed.values()] == [True] * 2


def test_divergence_is_an_outcome(make_fake_plan, tmp_path, trainer):
    plan = make_fake_plan(arms={"none": {}, "bad": {}}, behaviour={"bad": "diverges"})
    outcome = run(plan, tmp_path, workers=1, trainer=trainer)
    assert [r.arm for r in outcome.diverged] == ["bad", "bad"]
    assert not outcome.failed
    results = write_results(plan, tmp_path)
    assert [r.status for r in results.runs] == ["finished"] * 2 + ["diverged"] * 2
    (comparison,) = results.comparisons
    assert (comparison.verdict, comparison.diverged) == ("diverged", 2)
    assert not run(plan, tmp_path, workers=1, trainer=trainer).failed
    assert starts(plan, tmp_path)["main/bad/seed 0"] == [0]


def test_two_processes_cannot_run_one_folder(make_fake_plan, tmp_path, trainer):
    with (
        exclusive(tmp_path, "training"),
        pytest.raises(ConfigError, match=rf"process {os.getpid()}\); wait"),
    ):
        run(make_fake_plan(), tmp_path, trainer=trainer)
    assert not (tmp_path / "study.yaml").exists()


def test_a_signal_stops_with_every_run_saved_and_the_next_call_goes_on(
    make_fake_plan, tmp_path, trainer
):
    plan = make_fake_plan({"none": "is slow and silent"}, 100, seeds=[0])
    first = tmp_path / plan.runs[0].folder / "step"

    def interrupt():
        while not (first.exists() and first.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    before = signal.getsignal(signal.SIGINT)
    outcome = run(plan, tmp_path, workers=1, trainer=trainer)
    thread.join()
    assert signal.getsignal(signal.SIGINT) is before
    assert outcome.stopped_by == signal.SIGINT
    assert [r.arm for r in outcome.unfinished] == ["none", "low"]
    reached = int(first.read_text())
    assert 0 < reached < 100
    outcome = run(plan, tmp_path, workers=1, trainer=trainer)
    assert len(outcome.finished) == 2
    assert starts(plan, tmp_path)["main/none/seed 0"] == [0, reached]


def test_workers_of_a_killed_parent_end(make_fake_plan, tmp_path, trainer):
    plan = make_fake_plan({"none": "is slow and silent"}, 10_000, arms={"none": {}}, seeds=[0])
    (tmp_path / "plan.pickle").write_bytes(pickle.dumps(plan))
    script = (
        "import pathlib, pickle, sys\n"
        "from gatelm.study.running.run import run\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "plan = pickle.loads((root / 'plan.pickle').read_bytes())\n"
        f"run(plan, root, workers=1, trainer={trainer!r})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=environment)
    starts_file = tmp_path / plan.runs[0].folder / "starts"
    while not (starts_file.exists() and starts_file.read_text().endswith("\n")):
        assert parent.poll() is None
        time.sleep(0.02)
    worker = int(starts_file.read_text().split()[1])
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while alive(worker):
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.02)
    with exclusive(tmp_path, "training"):
        pass


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


def test_halves_give_the_bytes_of_the_whole(make_fake_plan, tmp_path, trainer):
    whole = make_fake_plan()
    run(whole, tmp_path / "a", workers=2, command="c", trainer=trainer)
    write_results(whole, tmp_path / "a")

    half = make_fake_plan(seeds=[0])
    run(half, tmp_path / "b", workers=1, command="c", trainer=trainer)
    write_results(half, tmp_path / "b")
    run(whole, tmp_path / "b", workers=1, command="c", trainer=trainer)
    write_results(whole, tmp_path / "b")
    first = (tmp_path / "b" / "results.csv").read_bytes()
    assert first == (tmp_path / "a" / "results.csv").read_bytes()
    a, b = (json.loads((tmp_path / x / "results.json").read_text()) for x in "ab")
    for results in (a, b):
        for record in results["runs"]:
            del record["seconds"]
    assert a == b
    before = (tmp_path / "b" / "results.json").read_bytes()
    write_results(whole, tmp_path / "b")
    assert (tmp_path / "b" / "results.json").read_bytes() == before
