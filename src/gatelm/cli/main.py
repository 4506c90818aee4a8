"""The `gatelm` command."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Annotated

import typer

from gatelm import __version__
from gatelm.cli import config, convert, data, extend, generate, info, train
from gatelm.cli.analyze import commands as analyze
from gatelm.cli.eval import commands as evaluation
from gatelm.cli.output import echo
from gatelm.cli.study import commands as study

app = typer.Typer(
    name="gatelm",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        echo(f"gatelm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print and leave.")
    ] = False,
) -> None:
    """Language models with gated attention: build, train, study and inspect them.

    Start with `gatelm study run demo` (two to ten minutes on two CPU cores), or train on your own
    text: `gatelm train text --set data.source=my-texts/`. A RECIPE is a YAML file, or the name of
    a shipped one; `gatelm config show RECIPE` prints what it resolves to.
    """


app.command()(train.train)
app.command()(analyze.analyze)
app.command()(convert.convert)
app.command()(extend.extend)
app.command()(generate.generate)
app.command("eval")(evaluation.evaluate)
app.add_typer(study.app, name="study")
app.add_typer(data.app, name="data")
app.command()(info.info)
app.add_typer(config.app, name="config")


INTERNAL_ERROR = 70
"""The exit status where gatelm itself is at fault (EX_SOFTWARE of sysexits.h)."""


def main() -> None:
    """Run the command, and say in one sentence on stderr what went wrong.

    Exit status 2: a user's mistake. 1: something outside failed, such as a full disk or too little
    memory; training that diverged; a study with failed runs. 128 and a signal's number: stopped by
    it (130: Ctrl-C). 70: an error of gatelm, whose traceback is kept in a file.
    """
    from gatelm.config import ConfigError
    from gatelm.io.signals import leave_terminal

    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # the bars of libraries, read as they load
    warnings.showwarning = _warned
    try:
        _stop_cleanly()
        _check_arguments(sys.argv)
        app()
    except ConfigError as error:
        echo(f"error: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        echo(f"error: {where}{error.strerror or error}", err=True)
        sys.exit(1)
    except MemoryError as error:
        echo(f"error: too little memory for this{_reason(error)}", err=True)
        sys.exit(1)
    except (KeyboardInterrupt, _Stopped) as stop:
        number = stop.number if isinstance(stop, _Stopped) else signal.SIGINT
        if signal.Signals(number).name == "SIGHUP":
            leave_terminal()
        echo(f"stopped by {signal.Signals(number).name}", err=True)
        sys.exit(128 + number)
    except Exception as error:
        if _is_out_of_memory(error):
            echo(f"error: too little memory for this{_reason(error)}", err=True)
            sys.exit(1)
        echo(_internal(error), err=True)
        sys.exit(INTERNAL_ERROR)


def _warned(message: Warning | str, *_: object) -> None:
    echo(f"warning: {message}", err=True)


class _Stopped(BaseException):
    """A signal that ends the command, raised so that what is unfinished is tidied away."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


def _stop_cleanly() -> None:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does; training handles them by itself."""

    def stop(number: int, frame: object) -> None:
        raise _Stopped(number)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, stop)


def _check_arguments(words: list[str]) -> None:
    from gatelm.config import ConfigError

    for word in words:
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            shown = word.encode("utf-8", "backslashreplace").decode("utf-8")
            raise ConfigError(f"argument {shown}: is no UTF-8 text") from None


def _is_out_of_memory(error: Exception) -> bool:
    """Whether torch could not get the memory that it asked for, on the CPU or on a GPU."""
    text = str(error).lower()
    wanted = ("out of memory", "not enough memory", "can't allocate memory")
    return isinstance(error, RuntimeError) and any(words in text for words in wanted)


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f" ({text:.200})" if text else ""


def _internal(error: Exception) -> str:
    """The sentence for an error that nothing foresaw; its traceback goes to a file."""
    import tempfile
    import traceback

    kind = f"{type(error).__name__}{_reason(error)}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="gatelm-error-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(f"{sys.argv!r}\n\n")
            file.write("".join(traceback.format_exception(error)))
        where = f"please report it with the file {file.name}"
    except OSError:
        traceback.print_exception(error)
        where = "please report it with the lines above"
    return f"error: gatelm met an error that it did not foresee: {kind}; {where}"


if __name__ == "__main__":
    main()
