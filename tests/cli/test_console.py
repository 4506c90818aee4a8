"""Text of others on the terminal."""

import io
import sys
import warnings

import pytest
from typer.testing import CliRunner

from gatelm.cli import main as main_module
from gatelm.cli.console import Console
from gatelm.cli.output import echo, printable


def test_control_characters_are_written_as_escapes():
    assert printable("a\x1b[31mb\x07\x9b2J\r\x7f") == "a\\x1b[31mb\\x07\\x9b2J\\x0d\\x7f"
    assert printable("ü\t☃\r\n\n") == "ü\t☃\r\n\n"


def test_echo_and_consoles_escape(capsys):
    echo("name \x1b]0;title\x07")
    assert capsys.readouterr().out == "name \\x1b]0;title\\x07\n"
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", width=80)
    console.print("arm \x1b[2J", style="bold", highlight=False)
    assert out.getvalue() == "\x1b[1marm \\x1b[2J\x1b[0m\n"


def test_errors_and_warnings_escape(capsys, monkeypatch):
    def fail():
        warnings.warn("tensor \x1b[2J", stacklevel=1)
        raise OSError(2, "no", "f\x1b[31m")

    monkeypatch.setattr(main_module, "app", fail)
    monkeypatch.setattr(sys, "argv", ["gatelm"])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(SystemExit):
            main_module.main()
    shown = capsys.readouterr().err
    assert shown == "warning: tensor \\x1b[2J\nerror: f\\x1b[31m: no\n"


def test_no_command_prints_around_it():
    """Whatever is printed goes through `echo`, `print_json` or the console above."""
    from pathlib import Path

    folder = Path(main_module.__file__).parent
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "typer.echo" not in text or path.name == "output.py", path
        assert "        from rich.console import Console" not in text, path


def test_a_vocabulary_beyond_memory_is_refused(tmp_path):
    (tmp_path / "t.txt").write_text("some text\n" * 50)
    arguments = ["data", "prepare", str(tmp_path / "t.txt"), "--vocab-size", "999999999999"]
    result = CliRunner().invoke(main_module.app, arguments)
    assert "tokenizer.vocab_size: Input should be less than or equal to" in str(result.exception)
