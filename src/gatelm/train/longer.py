"""After a run: the model on rows longer than those of training, before and after more training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from gatelm.analysis.metrics.longer_metrics import KEPT, LongerName
from gatelm.data.batch import IGNORE, Batch
from gatelm.data.source import Source, build_source
from gatelm.longcontext.scaling import scaled
from gatelm.nn.attention.masks import positions_in_documents
from gatelm.nn.model import Decoder
from gatelm.optim.build import build_optimizer, set_lr
from gatelm.train.evaluate import evaluating
from gatelm.train.longer_config import longer_data
from gatelm.train.loss import sum_loss
from gatelm.train.step import autocast

if TYPE_CHECKING:
    from gatelm.train.config import RunConfig


def longer_metrics(cfg: RunConfig, model: Decoder) -> dict[str, float]:
    """Metrics of `cfg.longer` by the names of `analysis.metrics.longer_metrics`."""
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
                _train_on(cfg, scaled_model, source, factor)
                out |= _analyze(cfg, scaled_model, source, LongerName("", factor, method, True))
    return out | _derived(cfg, out)


def _scaled(cfg: RunConfig, model: Decoder, method: str, factor: int) -> Decoder:
    """A copy of the model with its positions scaled."""
    own = model.cfg
    if method != "none":
        own = scaled(own, method, factor, cfg.data.seq_len)
    copy = Decoder(own)
    copy.load_state_dict(model.state_dict())
    return copy.to(next(model.parameters()).device)


def _analyze(cfg: RunConfig, model: Decoder, source: Source, name: LongerName) -> dict[str, float]:
    from gatelm.analysis import measure

    with evaluating(model):
        found = measure.analyze_batches(
            model, _marked(cfg, source, name.factor), map_tokens=0
        ).metrics()
    return {str(replace(name, stem=stem)): found[stem] for stem in KEPT if stem in found}


def _marked(cfg: RunConfig, source: Source, factor: int) -> Iterator[Batch]:
    """Held-out rows, their positions within and beyond the training length marked."""
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


def _train_on(cfg: RunConfig, model: Decoder, source: Source, factor: int) -> None:
    """Steps at a constant rate, a fresh optimiser, as many tokens a step as the run had."""
    assert cfg.longer is not None
    assert cfg.longer.train_steps is not None
    device = next(model.parameters()).device
    optimizer = build_optimizer(model, cfg.optim)
    settled = max([cfg.train.total_steps, *(g["train_from_step"] for g in optimizer.param_groups)])
    rows = max(1, cfg.train.batch_size // factor)
    model.train()
    for step in range(cfg.longer.train_steps):
        batch = source.batch(step, batch_size=rows).to(device)
        targets = max(1, int((batch.targets != IGNORE).sum()))
        with autocast(cfg.train, device):
            loss = sum_loss(model, batch) / targets
        loss.backward()
        if cfg.optim.grad_clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.optim.grad_clip)
        set_lr(optimizer, cfg.optim.lr * cfg.longer.train_lr_ratio, settled)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _derived(cfg: RunConfig, found: Mapping[str, float]) -> dict[str, float]:
    """Differences within this run; see `analysis.metrics.longer_metrics.DERIVED`."""
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
