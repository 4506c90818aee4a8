"""Names of metrics of several runs together, and of the uniform value of a share."""

from __future__ import annotations

from gatelm.analysis.metrics.registry import split_mark

LR_AXIS = "optim.lr"
LR_METRICS = ("lr_sensitivity", "largest_stable_lr", "best_lr", "best_lr_loss")
SPEED_METRICS = ("steps_to_baseline_loss", "seconds_to_baseline_loss", "reached_baseline_loss")


def uniform_name(metric: str) -> str | None:
    """Return the name of the uniform-attention value of a first-token share."""
    stem, mark = split_mark(metric)
    if stem != "first_token_share":
        return None
    return "first_token_share_uniform" + (f"_{mark}" if mark else "")
