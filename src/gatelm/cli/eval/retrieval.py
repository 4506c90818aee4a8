"""The work of `gatelm eval --tasks passkey,...`: ask, score, draw, resume after a stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gatelm.cli.eval.by_position import one_sentence, show_length
from gatelm.cli.options import Opening
from gatelm.cli.progress import Bars
from gatelm.config import ConfigError

if TYPE_CHECKING:
    from gatelm.longcontext.retrieval import Asked, RetrievalRequest

ANSWERS, RESULTS = "answers.jsonl", "results.json"


def retrieval(
    model: str,
    request: RetrievalRequest,
    *,
    essays_from: str,
    threshold: float,
    chunk_tokens: int,
    place: Opening,
    out: Path | None,
) -> dict[str, Any]:
    """Measure scores by task, length and depth; a stopped run resumes in the folder `out`."""
    from gatelm.hf.probe.prefill import open_prefill
    from gatelm.longcontext.retrieval import (
        ask,
        averages_by_length,
        by_depth,
        effective_length,
        model_answers,
        scores,
    )
    from gatelm.longcontext.tasks.base import Pieces

    request.check()
    essays = _essays(request, essays_from)
    reader, tokenizer, ends = open_prefill(model, **place)
    settings = {
        "model": model,
        "dtype": place["dtype"],
        "seed": request.seed,
        "samples": request.samples,
        "depths": request.places(),
        "answer_tokens": request.answer_tokens,
        "essays": essays_from if essays else None,
        "decoding": "greedy, no chat template",
        "begins_with_bos": bool(Pieces(tokenizer).front),
    }
    log = _Log(out, settings)
    with Bars() as bars, one_sentence(reader.name):
        asked = ask(
            request,
            Pieces(tokenizer),
            model_answers(reader, tokenizer, ends, chunk_tokens=chunk_tokens),
            essays=essays,
            known=log.known,
            save=log.save,
            progress=bars.show,
        )
    table = scores(asked)
    results = {
        **settings,
        "lengths": sorted(request.lengths),
        "scores": {task: {str(n): s for n, s in row.items()} for task, row in table.items()},
        "average": {str(n): mean for n, mean in averages_by_length(table).items()},
        "threshold": threshold,
        "effective_length_tokens": effective_length(table, threshold),
        "by_depth": by_depth(asked),
    }
    if out is not None:
        _write(out, results)
    return results


def _essays(request: RetrievalRequest, source: str) -> list[str]:
    from gatelm.data.holdout import read_texts
    from gatelm.longcontext.tasks import TASKS

    needing = [name for name in request.tasks if TASKS[name].needs_essays]
    if not needing:
        return []
    try:
        return read_texts(source)[0]
    except ConfigError as error:
        raise ConfigError(f"{needing[0]} hides its needle in prose: {error}") from None


class _Log:
    """The file of answers so far: a line with the settings, then one JSON object per answer."""

    def __init__(self, out: Path | None, settings: dict[str, Any]):
        from gatelm.io.folders import refuse_foreign
        from gatelm.longcontext.retrieval import Asked

        self._path = None if out is None else out / ANSWERS
        self.known: dict[Any, Asked] = {}
        if self._path is None:
            return
        refuse_foreign(self._path.parent, "answers", ANSWERS, (RESULTS,))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        head = {name: settings[name] for name in settings if name not in ("samples", "depths")}
        if not self._path.exists():
            self._path.write_text(json.dumps(head) + "\n", encoding="utf-8")
            return
        first, *lines = self._path.read_text(encoding="utf-8").splitlines() or [""]
        if first != json.dumps(head):
            raise ConfigError(
                f"--out {out}: holds answers of another model or other settings; choose another "
                "folder"
            )
        for line in lines:
            try:
                tree = json.loads(line)
            except ValueError:
                continue  # the line that a stopped run was writing
            asked = Asked(**{**tree, "references": tuple(tree["references"])})
            self.known[asked.key] = asked
        if lines and not self._path.read_bytes().endswith(b"\n"):
            with self._path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def save(self, asked: Asked) -> None:
        """Append one answer."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asked.to_json()) + "\n")


def _write(out: Path, results: dict[str, Any]) -> None:
    """Write results.json, and a heatmap of each task that has a depth, as SVG and PNG."""
    from gatelm.io.files import write_json
    from gatelm.report.charts.figures import write
    from gatelm.report.charts.retrieval import score_by_depth
    from gatelm.report.page import Figure

    write_json(out / RESULTS, results)
    figures = []
    for task in dict.fromkeys(cell["task"] for cell in results["by_depth"]):
        rows = [
            {
                "length": show_length(cell["length_tokens"]),
                "depth": cell["depth"],
                "value": cell["score"],
            }
            for cell in results["by_depth"]
            if cell["task"] == task
        ]
        chart = score_by_depth(rows, title=f"{Path(results['model']).name}: {task}")
        figures.append(Figure(f"depth-{task}", chart, width=420))
    write(figures, out)


def table(found: dict[str, Any]) -> list[str]:
    """Format the results as a table for people."""
    lengths = found["lengths"]
    width = max(18, *(len(task) for task in found["scores"]))
    lines = [
        f"{found['samples']} texts at each of {len(found['depths'])} depths, {found['decoding']}; "
        "points of 100",
        "  " + "task".ljust(width) + "".join(f"{show_length(n):>9}" for n in lengths),
    ]
    rows = [*found["scores"].items(), ("average", found["average"])]
    for task, row in rows if len(found["scores"]) > 1 else rows[:1]:
        lines.append("  " + task.ljust(width) + "".join(f"{row[str(n)]:>9.1f}" for n in lengths))
    effective = found["effective_length_tokens"]
    lines.append(
        f"  effective length: {show_length(effective) if effective else 'none of these'} (the "
        f"largest whose average is above {found['threshold']:g})"
    )
    return lines
