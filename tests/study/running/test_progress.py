"""The displays, told what a scheduler tells them."""

from __future__ import annotations

import io

from rich.console import Console

from gatelm.study.running import progress
from gatelm.study.running.progress import Clock, LiveDisplay, PlainDisplay, clock_time, make_display
from gatelm.train.watching.progress import Progress


def at(step, total=10, phase="train"):
    return Progress(step, total, 2.5, 1234.0, phase)


def test_time_left_comes_from_work_done_here(make_plan, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    plan = make_plan(seeds=[0])
    clock = Clock(plan, done=[], workers=1)
    first, second = plan.runs
    assert clock.remaining() is None
    clock.begin(first)
    assert clock.progress(first, at(0, phase="data")) is None
    assert clock.progress(first, at(4)) is None
    now[0] = 6.0
    assert clock.progress(first, at(6)) == 12.0
    clock.end(first, completed=True)
    assert clock.remaining() == 6.0
    clock.begin(second)
    clock.end(second, completed=False)
    assert (clock.runs_done, clock.total) == (1, 2)
    assert Clock(plan, done=[first], workers=1).runs_done == 1


def test_the_first_time_left_is_the_expected_one(make_plan, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    plan = make_plan(seeds=[0])
    first, second = plan.runs
    clock = Clock(plan, done=[], workers=1, expected={first: 100.0, second: 300.0})
    assert clock.remaining() == 400.0
    clock.begin(first)
    now[0] = 60.0  # the machine turns out to be half as fast
    clock.progress(first, at(2))
    clock.progress(first, at(3))
    assert 400.0 < clock.remaining() < 800.0
    now[0] = 200.0
    clock.end(first, completed=True)
    assert 450.0 < clock.remaining() < 600.0


def tell(display, plan):
    display.start(plan, [], 1, 1)
    run = plan.runs[0]
    display.begin(run)
    display.progress(run, at(5))
    display.progress(run, at(10, phase="eval"))
    display.end(run, "failed", "some [words]")
    display.note("a note")
    display.stop()


def test_plain_lines(make_plan):
    stream = io.StringIO()
    display = PlainDisplay(stream)
    display.EVERY_SECONDS = 0.0
    tell(display, make_plan(seeds=[0]))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "tiny: 2 runs to train, 1 at a time with 1 thread each"
    assert lines[1] == "start    main/none/seed 0"
    assert "5/10  loss 2.500  1,234 tok/s  ETA" in lines[2]
    assert "10/10  eval  loss" in lines[3]
    assert lines[4].startswith("failed   main/none/seed 0: some [words]  [0 of 2 runs done, ETA ")
    assert lines[5] == "a note"


def test_live_display_keeps_what_ended(make_plan):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80)
    assert isinstance(make_display(console), LiveDisplay)
    tell(make_display(console), make_plan(seeds=[0]))
    text = stream.getvalue()
    assert "main/none/seed 0: some [words]" in text
    assert "0 of 2 runs" in text
    assert isinstance(make_display(Console(file=io.StringIO())), PlainDisplay)


def test_clock_times():
    assert [clock_time(s) for s in (None, 0, 61, 3723)] == ["-:--", "0:00", "1:01", "1:02:03"]
