"""Measurements of a trained model on rows longer than in training, with and without more."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from gatelm.analysis.metrics.longer_metrics import KEPT, LongerName
from gatelm.analysis.probe.evaluation import evaluation
from gatelm.data.batch import Batch
from gatelm.data.source import Source, build_source
from gatelm.longcontext.scaling import scaled
from gatelm.nn.attention.masks import positions_in_documents
from gatelm.nn.model import Decoder
from gatelm.train.config import RunConfig
from gatelm.train.longer_config import longer_data
from gatelm.train.parallel import World
from gatelm.train.setup import state_of
from gatelm.train.step import train_step

log = logging.getLogger("gatelm")


def longer_metrics(cfg: RunConfig, model: Decoder) -> dict[str, float]:
    """Measure the metrics of `cfg.longer` by the names of `analysis.metrics.longer_metrics`."""
    if cfg.longer is None:
        return {}
    out: dict[str, float] = {}
    for factor in cfg.longer.factors:
        source = build_source(longer_data(cfg.data, factor), cfg.seed)
        for method in cfg.longer.methods:
            scaled_model = _scaled(cfg, model, method, factor)
            out |= _analyze(cfg, scaled_model, source, LongerName("", factor, method, False))
        if cfg.longer.train_steps is not None and factor == cfg.longer.train_factor:
            for method in cfg.longer.train_methods:
                scaled_model = _scaled(cfg, model, method, factor)
                if _train_on(cfg, scaled_model, source, factor):
                    out |= _analyze(cfg, scaled_model, source, LongerName("", factor, method, True))
    return out | _derived(cfg, out)


def _scaled(cfg: RunConfig, model: Decoder, method: str, factor: int) -> Decoder:
    """Copy the model with its positions scaled."""
    own = model.cfg
    if method != "none":
        own = scaled(own, method, factor, cfg.data.seq_len)
    copy = Decoder(own)
    copy.load_state_dict(model.state_dict())
    return copy.to(next(model.parameters()).device)


def _analyze(cfg: RunConfig, model: Decoder, source: Source, name: LongerName) -> dict[str, float]:
    from gatelm.analysis import measure

    with evaluation(model):
        found = measure.analyze_batches(
            model, _marked(cfg, source, name.factor), map_tokens=0
        ).metrics()
    return {str(replace(name, stem=stem)): found[stem] for stem in KEPT if stem in found}


def _marked(cfg: RunConfig, source: Source, factor: int) -> Iterator[Batch]:
    """Return held-out rows with marks on positions within and beyond the training length."""
    assert cfg.longer is not None
    rows = max(1, (cfg.train.micro_batch_size or cfg.train.batch_size) // factor)
    rows = min(rows, cfg.longer.sequences)
    for batch in source.validation(rows, cfg.longer.sequences):
        if batch.documents is None:
            positions = torch.arange(batch.tokens.shape[1]).expand_as(batch.tokens)
        else:
            positions = positions_in_documents(batch.documents)
        within = positions < cfg.data.seq_len
        yield replace(batch, marks={**batch.marks, "within": within, "beyond": ~within})


def _train_on(cfg: RunConfig, model: Decoder, source: Source, factor: int) -> bool:
    """Train at a constant rate with a new optimiser, on as many tokens a step as the run had.

    Returns:
        False when the training diverged, which says nothing about longer rows.
    """
    assert cfg.longer is not None
    assert cfg.longer.train_steps is not None
    state = state_of(model, cfg)
    # as after the run's last step: every group trains
    begins = (g["train_from_step"] for g in state.optimizer.param_groups)
    state.step = max([cfg.train.total_steps, *begins])
    micro = cfg.train.micro_batch_size
    train = cfg.train.replace(micro_batch_size=None if micro is None else max(1, micro // factor))
    model.train()
    for step in range(cfg.longer.train_steps):
        outcome = train_step(
            state,
            source.batch(step, batch_size=max(1, cfg.train.batch_size // factor)),
            lr=cfg.optim.lr * cfg.longer.train_lr_ratio,
            grad_clip=cfg.optim.grad_clip,
            cfg=train,
            world=World(next(model.parameters()).device),
        )
        if outcome.status == "diverged":
            log.warning(
                "more training on rows of %d tokens diverged: %s", source.seq_len, outcome.spike
            )
            return False
    return True


def _derived(cfg: RunConfig, found: Mapping[str, float]) -> dict[str, float]:
    """Compute differences within this run; see `analysis.metrics.longer_metrics.DERIVED`."""
    assert cfg.longer is not None
    out: dict[str, float] = {}
    for factor in cfg.longer.factors:
        start = found.get(str(LongerName("val_loss_within", factor, "none", False)))
        for trained in (False, True):
            plain = found.get(str(LongerName("val_loss_beyond", factor, "none", trained)))
            for method in dict.fromkeys((*cfg.longer.methods, *cfg.longer.train_methods)):
                name = LongerName("", factor, method, trained)
                beyond = found.get(str(replace(name, stem="val_loss_beyond")))
                within = found.get(str(replace(name, stem="val_loss_within")))
                if beyond is not None and start is not None:
                    out[str(replace(name, stem="val_loss_rise"))] = beyond - start
                if within is not None and start is not None:
                    out[str(replace(name, stem="val_loss_cost"))] = within - start
                if beyond is not None and plain is not None and method != "none":
                    out[str(replace(name, stem="scaling_gain"))] = plain - beyond
    return out
