"""`gatelm generate`: continue a text."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from gatelm.cli.options import MODEL_HELP, Device, DType, IgnoreUnknown, opening
from gatelm.cli.output import echo

LEAST_TEMPERATURE = 1e-4
"""Least temperature: scores divided by a smaller one may leave the range of floats."""


def generate(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    prompt: Annotated[str, typer.Option(help="The text to continue; - reads it from stdin.")],
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to add at most.")] = 128,
    temperature: Annotated[
        float, typer.Option(help="Above 0: below 1 keeps closer to the likely, above 1 less.")
    ] = 1.0,
    top_p: Annotated[
        float, typer.Option(help="Draw from the likeliest tokens that sum to this probability.")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(min=0, max=2**64 - 1, help="The same seed draws the same text.")
    ] = 0,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Always the likeliest token; nothing is drawn.")
    ] = False,
    device: Device = "auto",
    dtype: DType = "float32",
    ignore_unknown_tensors: IgnoreUnknown = False,
) -> None:
    """Print PROMPT and its continuation, as it comes.

    It ends at the model's end of text, or after --max-new-tokens.
    """
    from gatelm.config import ConfigError

    if not greedy and not LEAST_TEMPERATURE <= temperature < math.inf:
        raise ConfigError(
            f"--temperature: a number of at least {LEAST_TEMPERATURE:g}; --greedy takes the "
            "likeliest token"
        )
    if not 0 < top_p <= 1:
        raise ConfigError("--top-p: a probability above 0, at most 1")
    if prompt == "-":
        prompt = typer.get_text_stream("stdin").read()
    from gatelm.hf.modeling.generation import Sampling, open_generator, stream

    generator, tokenizer = open_generator(model, **opening(device, dtype, ignore_unknown_tensors))
    _write(prompt)
    stream(
        generator,
        tokenizer,
        prompt,
        max_new_tokens=max_new_tokens,
        sampling=Sampling(None if greedy else temperature, top_p),
        seed=seed,
        write=_write,
        note=lambda text: echo(f"note: {text}", err=True),
    )
    echo()


def _write(text: str) -> None:
    echo(text, nl=False)
