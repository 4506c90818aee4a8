import io

from rich.console import Console

from gatelm.cli import progress as module
from gatelm.cli.progress import RunDisplay
from gatelm.train.watching.progress import Progress


def shown(monkeypatch, times, reports, **console):
    out = io.StringIO()
    ticks = iter(times)
    monkeypatch.setattr(module.time, "monotonic", lambda: next(ticks))
    with RunDisplay(Console(file=out, width=120, **console), "tiny", line_seconds=10) as display:
        for report in reports:
            display.report(report)
    return out.getvalue()


def test_lines_come_now_and_then_without_a_terminal(monkeypatch):
    reports = [Progress(step, 100, 3.0 - step / 100, 1234.5, "train") for step in (0, 1, 2, 50)]
    reports.append(Progress(100, 100, 2.0, 1234.5, "done"))
    lines = shown(monkeypatch, [0, 1, 2, 11, 12], reports).splitlines()
    assert lines == [
        "tiny: step 0/100, loss 3.000, 1,234 tokens/s",
        "tiny: step 50/100, loss 2.500, 1,234 tokens/s, 0:00:11 left",
        "tiny: step 100/100, loss 2.000, 1,234 tokens/s",
    ]


def test_preparing_data_does_not_count_as_steps(monkeypatch):
    reports = [Progress(0, 100, None, None, "data"), Progress(0, 100, None, None, "eval")]
    reports += [Progress(step, 100, 3.0, None, "train") for step in (1, 6)]
    lines = shown(monkeypatch, [0, 900, 1000, 1010], reports).splitlines()
    assert lines[-1] == "tiny: step 6/100, loss 3.000, 0:03:08 left"


def test_a_terminal_gets_a_bar(monkeypatch):
    monkeypatch.undo()
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True)
    with RunDisplay(console, "tiny") as display:
        display.report(Progress(3, 10, 2.5, 1000.0, "eval"))
    assert "3/10" in out.getvalue()
    assert "loss 2.500, 1,000 tokens/s, eval" in out.getvalue()
