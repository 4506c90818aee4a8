"""Loss and health on held-out data."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from gatelm.analysis.probe.evaluation import evaluation
from gatelm.data.batch import IGNORE, Batch
from gatelm.data.source import Source
from gatelm.train.config import TrainConfig
from gatelm.train.loss import LanguageModel, sum_loss
from gatelm.train.parallel import World
from gatelm.train.step import autocast


def evaluate(model: nn.Module, source: Source, cfg: TrainConfig, world: World) -> dict[str, float]:
    """Measure `val_loss` in nats per target, and `val_bits_per_byte` for text.

    The mean is over all targets of the first `cfg.eval_sequences` held-out sequences; processes
    share the batches.
    """
    language_model: LanguageModel = model  # pyright: ignore[reportAssignmentType]
    rows = min(cfg.micro_batch_size or cfg.batch_size, cfg.eval_sequences)
    loss, targets = 0.0, 0
    with evaluation(model):
        for index, batch in enumerate(source.validation(rows, cfg.eval_sequences)):
            if index % world.size != world.rank:
                continue
            with autocast(cfg, world.device):
                loss += float(sum_loss(language_model, batch.to(world.device)))
            targets += int((batch.targets != IGNORE).sum())
    total_loss, total_targets = world.sums([loss, float(targets)])
    mean = total_loss / total_targets if total_targets else math.nan
    out = {"val_loss": mean}
    if source.bytes_per_token:
        out["val_bits_per_byte"] = mean / math.log(2) / source.bytes_per_token
    return out


def health_metrics(model: nn.Module, source: Source, cfg: TrainConfig) -> dict[str, float]:
    """Measure sinks, activations, gates and logits on `cfg.health_sequences` held-out sequences."""
    from gatelm.analysis import measure

    with evaluation(model):
        return measure.health(model, held_out_batches(source, cfg, cfg.health_sequences))


def held_out_batches(source: Source, cfg: TrainConfig, sequences: int) -> Iterator[Batch]:
    """Yield held-out batches of the size that training holds in memory."""
    return source.validation(min(cfg.micro_batch_size or cfg.batch_size, sequences), sequences)
