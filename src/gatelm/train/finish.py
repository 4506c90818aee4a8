"""The end of a run: the final look at the model, and its folder."""

from __future__ import annotations

from gatelm.data.source import Source
from gatelm.nn.model import Decoder
from gatelm.train.config import RunConfig
from gatelm.train.evaluate import evaluating, look_batches
from gatelm.train.export import export_model
from gatelm.train.files import write_json
from gatelm.train.folder import RunFolder
from gatelm.train.state import TrainState, versions


def finish(
    cfg: RunConfig,
    source: Source,
    state: TrainState,
    folder: RunFolder,
    validation: dict[str, float],
) -> dict[str, float]:
    """Write analysis.json and the model folder; the metrics of result.json.

    `validation` (see `evaluate`) is over the same sequences in the precision of training, so it
    takes the place of the look's own loss.
    """
    from gatelm.analysis import look

    model = state.model
    assert isinstance(model, Decoder)
    with evaluating(model):
        final = look.look(model, look_batches(source, cfg.train, cfg.train.eval_sequences))
    write_json(folder.analysis, final.to_json())
    facts = {
        "Run": cfg.name,
        "Data": source.fingerprint,
        "Seed": str(cfg.seed),
        "Steps": f"{state.step:,}",
        "Tokens": f"{state.tokens:,}",
        "Validation loss": f"{validation['val_loss']:.4f} nats per token",
        "Versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }
    export_model(folder.model, model, source.tokenizer, facts)
    return {**final.metrics(), **validation}
