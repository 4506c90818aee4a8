"""Options that several commands have, and which options were typed."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, TypedDict

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
JsonResult = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
JsonAlone = Annotated[bool, typer.Option("--json", help="Print JSON; progress goes to stderr.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a value; may be repeated."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
DType = Annotated[
    str, typer.Option(help="float32, bfloat16, float16, or auto: the checkpoint's own.")
]
IgnoreUnknown = Annotated[
    bool,
    typer.Option(
        "--ignore-unknown-tensors",
        help="Run the model without the tensors that its architecture does not have.",
    ),
]
BOSChoice = Literal["auto", "always", "never"]
BOS = Annotated[
    BOSChoice,
    typer.Option(help="BOS in front of every row; auto: where the tokenizer puts it itself."),
]
MODEL_HELP = (
    "A run or model folder, a Hugging Face folder (config.json and safetensors), a GGUF file, or "
    "an installed package that carries one."
)
MaxLost = Annotated[
    float,
    typer.Option(
        min=0,
        max=1,
        help="Largest share of characters that the tokenizer drops, or of unknown tokens.",
    ),
]
SOURCE_HELP = (
    "A gatelm run or model folder, a Hugging Face folder, a GGUF file, or an installed package "
    "that carries one."
)


class Opening(TypedDict):
    """How a model is opened: the keyword arguments of `hf.load.open_model`."""

    device: str
    dtype: str
    unknown_tensors: Literal["refuse", "ignore"]


def opening(device: str, dtype: str, ignore_unknown_tensors: bool) -> Opening:
    """Make the arguments of `Opening` from the options above."""
    unknown = "ignore" if ignore_unknown_tensors else "refuse"
    return {"device": device, "dtype": dtype, "unknown_tensors": unknown}


def typed(context: typer.Context) -> Iterator[tuple[str, str]]:
    """The parameter name and the spelling of each option that was typed.

    What nothing would use is refused by the commands, not ignored.
    """
    for option in context.command.params:
        name = option.name or ""
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            yield name, option.opts[0]


def command_again(verb: str, recipe: str, **options: Iterable[object]) -> str:
    """The command line of a verb with a recipe, to be typed again: each option as often as given.

    An option without a value (None) is left out.
    """
    words = ["gatelm", *verb.split(), recipe]
    for name, values in options.items():
        for value in values:
            words += [] if value is None else [f"--{name}", str(value)]
    return shlex.join(words)


def settings(given: list[str], example: str = "") -> dict[str, Any]:
    """The values of `--set KEY=VALUE`, by key.

    Raises:
        ConfigError: for a text that is no KEY=VALUE; `example` says how one looks.
    """
    from gatelm.config import ConfigError
    from gatelm.config.load import parse_value

    out: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text}: expected KEY=VALUE{example}")
        out[key.strip()] = parse_value(value)
    return out
