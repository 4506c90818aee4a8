"""The `gatelm` command."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from gatelm import __version__
from gatelm.cli import config, convert, data, extend, generate, info, train
from gatelm.cli.analyze import commands as analyze
from gatelm.cli.eval import commands as evaluation
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
        typer.echo(f"gatelm {__version__}")
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


def main() -> None:
    """Run the command; a user's mistake is one sentence on stderr and exit status 2."""
    from gatelm.config import ConfigError

    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # the bars of libraries, read as they load
    try:
        app()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
