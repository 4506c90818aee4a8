"""The work of `gatelm eval RUN --tasks recall`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gatelm.cli.eval.by_position import one_sentence, show_length
from gatelm.cli.options import Opening
from gatelm.cli.progress import Bars
from gatelm.config import ConfigError

NAME = "recall"


def recall(
    model: str, lengths: list[int] | None, depths: int, rows: int, place: Opening
) -> dict[str, Any]:
    """Measure accuracy by length and depth on the task that a run was trained on."""
    from gatelm.config.load import read_yaml
    from gatelm.data.config import AssociativeRecallConfig
    from gatelm.eval.recall import recall_by_depth
    from gatelm.hf.load import open_model
    from gatelm.train.config import RunConfig

    file = Path(model).expanduser() / "config.yaml"
    cfg = RunConfig.parse(read_yaml(file), str(file)).data if file.is_file() else None
    if not isinstance(cfg, AssociativeRecallConfig):
        raise ConfigError(
            f"--tasks {NAME}: {model} is no folder of a run with data.kind associative_recall "
            "(`gatelm train context-recall` makes one)"
        )
    probe, _ = open_model(model, **place)
    wanted = lengths or [cfg.seq_len * factor for factor in (1, 2, 4, 8)]
    with Bars() as bars, one_sentence(probe.name):
        cells = recall_by_depth(
            probe,
            cfg,
            wanted,
            depths=depths,
            rows=rows,
            report=lambda done, total: bars.show("lengths", done, total),
        )
    return {"trained_tokens": cfg.seq_len, "rows": rows, "by_depth": cells}


def table(found: dict[str, Any]) -> list[str]:
    """Format the accuracies as a table: lengths across, depths down."""
    cells = {(c["depth"], c["length_tokens"]): c["score"] for c in found["by_depth"]}
    lengths = sorted({length for _, length in cells})
    lines = [
        f"associative recall, share of right answers in {found['rows']} rows; trained on rows of "
        f"{found['trained_tokens']}",
        "  depth of the pair, %" + "".join(f"{show_length(n):>9}" for n in lengths),
    ]
    for depth in sorted({depth for depth, _ in cells}):
        row = [cells.get((depth, n)) for n in lengths]
        shown = "".join(f"{'-' if value is None else f'{value:.3f}':>9}" for value in row)
        lines.append(f"  {depth:>20}{shown}")
    return lines
