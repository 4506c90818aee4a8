"""Metrics that training counts, and those that a study takes from several runs together."""

from __future__ import annotations

from gatelm.analysis.metrics.metric import Metric, of_subject

OF_TRAINING = of_subject(
    "training",
    Metric(
        "loss_spike_score",
        "Spikes of the training loss",
        "Share of the steps whose loss is above the mean of the window of steps before it by more "
        "than so many standard deviations (train.spike_window_steps, train.spike_threshold_std; "
        "128 and 6 unless set: the rule of OLMo-core). No step before the window is full counts, "
        "and a loss that is not a number always does.",
        "lower",
    ),
    Metric(
        "grad_norm_spike_score",
        "Spikes of the gradient norm",
        "As the spikes of the training loss, for the norm of the gradient before clipping.",
        "lower",
    ),
)

OF_STUDIES = of_subject(
    "study",
    Metric(
        "steps_to_baseline_loss",
        "Steps to the baseline's last loss",
        "First step at which the validation loss of a run is at or below the last one of its "
        "baseline, the run with the same seed and axes; a straight line between validations. A run "
        "that never gets there counts with all its steps, which is too few: see whether it did.",
        "lower",
        "steps",
    ),
    Metric(
        "seconds_to_baseline_loss",
        "Seconds to the baseline's last loss",
        "Seconds spent in training steps, validations left out, up to that step. Other work on the "
        "machine is in it, so it is no part of results.csv.",
        "lower",
        "seconds",
    ),
    Metric(
        "reached_baseline_loss",
        "Reached the baseline's last loss",
        "1 if the run's validation loss came to or below the last one of its baseline, else 0.",
        "higher",
    ),
    Metric(
        "lr_sensitivity",
        "Learning-rate sensitivity",
        "Mean over the grid of learning rates of min(final loss, loss at the start), minus the "
        "best final loss of the grid; a diverged run counts with the loss at the start (arXiv "
        "2309.14322). One number a seed.",
        "lower",
        "nats per token",
    ),
    Metric(
        "largest_stable_lr",
        "Largest stable learning rate",
        "Largest rate of the grid up to which no run diverged: all are finite and end at or below "
        "the loss at the start. One number a seed; at the grid's end it is a lower bound.",
        "higher",
    ),
    Metric(
        "best_lr",
        "Best learning rate",
        "Rate of the grid with the lowest final validation loss. One number a seed.",
    ),
    Metric(
        "best_lr_loss",
        "Validation loss at the best learning rate",
        "Lowest final validation loss over the grid of learning rates. One number a seed.",
        "lower",
        "nats per token",
    ),
)

TRAINING_METRICS = tuple(metric.name for metric in OF_TRAINING)
"""Metrics that training itself counts, in `training` of result.json."""
