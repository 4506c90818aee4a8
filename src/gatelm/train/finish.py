"""The end of a run: the final analysis of the model, and its folder."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gatelm.analysis.probe.evaluation import evaluation
from gatelm.data.source import Source
from gatelm.io.files import write_json
from gatelm.nn.model import Decoder
from gatelm.train.config import RunConfig
from gatelm.train.evaluate import held_out_batches
from gatelm.train.longer import longer_metrics
from gatelm.train.saving.export import export_model
from gatelm.train.saving.folder import RunFolder
from gatelm.train.saving.state import TrainState, versions
from gatelm.train.start import model_folder, starting_model

if TYPE_CHECKING:
    from gatelm.analysis.movement import Movement


def finish(
    cfg: RunConfig, source: Source, state: TrainState, folder: RunFolder
) -> dict[str, float]:
    """Write the model folder and analysis.json, and return the metrics of result.json.

    The analysis computes in fp32 whatever the precision of training, so its loss is comparable
    across precisions; validations along the way are in the precision of training.
    """
    from gatelm.analysis import measure
    from gatelm.analysis.statistics.experts import expert_metrics, expert_tree, expert_use

    model = state.model
    assert isinstance(model, Decoder)
    with evaluation(model):
        final = measure.analyze_batches(
            model,
            held_out_batches(source, cfg.train, cfg.train.eval_sequences),
            bytes_per_token=source.bytes_per_token,
            decode=source.decode_tokens,
        )
        experts = expert_use(model, held_out_batches(source, cfg.train, cfg.train.eval_sequences))
    metrics = final.metrics() | expert_metrics(experts) | _causal(cfg, source, model)
    metrics |= longer_metrics(cfg, model)
    facts = {
        "Run": cfg.name,
        **({} if cfg.init_from is None else {"Started from": cfg.init_from.path}),
        "Data": source.fingerprint,
        "Seed": str(cfg.seed),
        "Steps": f"{state.step:,}",
        "Precision": cfg.train.precision,
        "Tokens": f"{state.tokens:,}",
        "Validation loss": f"{metrics.get('val_loss', math.nan):.4f} nats per token",
        "Versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }
    tree = final.to_json()
    if experts:
        tree["experts"] = expert_tree(experts)
    if cfg.init_from is not None and any(layer.gates for layer in model.cfg.layers()):
        movement = _movement(cfg, source, model)
        metrics |= movement.metrics()
        tree["gate_movement"] = movement.to_json()
    export_model(
        folder.model,
        model,
        source.tokenizer,
        facts,
        context_tokens=source.seq_len,
        trained_from=None if cfg.init_from is None else model_folder(cfg.init_from.path),
    )
    write_json(folder.analysis, tree)
    return metrics


def _causal(cfg: RunConfig, source: Source, model: Decoder) -> dict[str, float]:
    """Measure the gates' effect on loss and sinks, if the config asks for it."""
    if cfg.train.final_causal == "off":
        return {}
    from gatelm.analysis.causal import gate_effects

    return gate_effects(model, held_out_batches(source, cfg.train, cfg.train.health_sequences))


def _movement(cfg: RunConfig, source: Source, model: Decoder) -> Movement:
    """Measure the distance of the gates from the trained model's, or from new ones' start."""
    from gatelm.analysis.movement import gate_movement

    start = starting_model(model.cfg, cfg.seed, cfg.init_from, source.tokenizer)
    start.to(next(model.parameters()).device)
    batches = held_out_batches(source, cfg.train, cfg.train.eval_sequences)
    return gate_movement(start, model, batches)
