"""Names of the metrics that several runs of a study give together, and the axis they vary along."""

from __future__ import annotations

LR_AXIS = "optim.lr"
LR_METRICS = ("lr_sensitivity", "largest_stable_lr", "best_lr", "best_lr_loss")
SPEED_METRICS = ("steps_to_baseline_loss", "seconds_to_baseline_loss", "reached_baseline_loss")
