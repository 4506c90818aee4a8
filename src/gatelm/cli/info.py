"""`gatelm info`: a model's size and cost, from its config alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gatelm.cli.options import Json, Overrides
from gatelm.cli.output import echo, print_json

if TYPE_CHECKING:
    from gatelm.config import Config
    from gatelm.nn.model import ModelConfig


def info(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE", help="A run or model recipe, e.g. models/paper-1.7b-28l, or a file."
        ),
    ],
    overrides: Overrides = None,
    seq_len: Annotated[
        int | None, typer.Option(min=1, help="Tokens of context [default: the recipe's, or 4096].")
    ] = None,
    as_json: Json = False,
) -> None:
    """Count parameters, FLOPs per token and cache bytes; of a run also precision and time here.

    No weight is allocated, but for a few training steps where a model is small enough to time.
    """
    from gatelm.cli.recipe import load_recipe, model_of

    config, _ = load_recipe(recipe, overrides or ())
    model, recipe_seq_len = model_of(config, recipe)
    facts = _facts(model, seq_len or recipe_seq_len) | _training(config, model)
    if as_json:
        print_json(facts)
    else:
        _print(facts)


def _facts(model: ModelConfig, seq_len: int) -> dict[str, Any]:
    from gatelm.nn.count import cache_bytes, count, flops_per_token, kv_bytes_per_token

    counted = count(model)
    sites = [[m.site for m in layer.gates] for layer in model.layers()]
    return {
        "parameters": counted.as_dict(),
        "gate_share": counted.gate_share,
        "flops_per_token": {
            "seq_len": seq_len,
            "forward": flops_per_token(model, seq_len, training=False),
            "training": flops_per_token(model, seq_len),
        },
        "kv_bytes_per_token": {
            "float32": kv_bytes_per_token(model, 4),
            "bfloat16": kv_bytes_per_token(model, 2),
        },
        "cache_bytes": {
            "seq_len": seq_len,
            "float32": cache_bytes(model, seq_len, 4),
            "bfloat16": cache_bytes(model, seq_len, 2),
        },
        "layers": model.num_layers,
        "gated_layers": sum(1 for layer in sites if layer),
        "sites": sorted({site for layer in sites for site in layer}),
    }


def _training(config: Config, model: ModelConfig) -> dict[str, Any]:
    """Estimate a run's precision and time on this machine; empty for a model alone."""
    import torch

    from gatelm.train.config import RunConfig
    from gatelm.train.precision import resolved
    from gatelm.train.speed import run_flops, training_speed

    if not isinstance(config, RunConfig):
        return {}
    run = resolved(config)
    speed = training_speed(run, model, threads=run.train.threads or torch.get_num_threads())
    return {
        "training": {
            "precision": run.train.precision,
            "asked_precision": config.train.precision,
            "seconds": run_flops(run, model) / speed.flops_per_second,
            "basis": "timed steps" if speed.measured else "products",
        }
    }


def _print(facts: dict[str, Any]) -> None:
    from gatelm.cli.progress import duration

    for name, value in facts["parameters"].items():
        echo(f"{'parameters, ' + name:<32} {value:>18,}")
    echo(f"{'gates, share of all':<32} {facts['gate_share']:>18.4%}")
    flops = facts["flops_per_token"]
    for name in ("forward", "training"):
        label = f"FLOPs per token, {name}, T={flops['seq_len']}"
        echo(f"{label:<32} {flops[name]:>18,}")
    for dtype, value in facts["kv_bytes_per_token"].items():
        echo(f"{'cache bytes per token, ' + dtype:<32} {value:>18,}")
    held = facts["cache_bytes"]
    for dtype in ("float32", "bfloat16"):
        label = f"cache bytes, T={held['seq_len']}, {dtype}"
        echo(f"{label:<32} {held[dtype]:>18,}")
    where = ", ".join(facts["sites"]) or "no site"
    echo(f"{facts['gated_layers']} of {facts['layers']} layers gated, at {where}")
    if training := facts.get("training"):
        chosen = ", chosen for this machine" if training["asked_precision"] == "auto" else ""
        basis = {
            "timed steps": "from a few timed steps",
            "products": "a guess from the speed of matrix products",
        }
        echo(
            f"training here: {training['precision']}{chosen}, about "
            f"{duration(training['seconds'])} ({basis[training['basis']]})"
        )
