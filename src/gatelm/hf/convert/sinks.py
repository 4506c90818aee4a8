"""`convert --sinks-to-gates`: the text, the tokenizer and the report around `gatelm.sinks`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gatelm.analysis.probe.protocol import TextTokenizer
from gatelm.config import ConfigError
from gatelm.data.holdout import read_texts
from gatelm.hf.convert.checkpoint import SourceModel
from gatelm.hf.convert.formats.pieces import State
from gatelm.hf.load import open_tokenizer
from gatelm.hf.probe.tokenizer import HFTokenizer
from gatelm.io.files import write_json
from gatelm.io.weights import read_weights
from gatelm.nn.model import ModelConfig
from gatelm.sinks.convert import SinkError, SinkOptions, SinkReport, sinks_to_gates

REPORT = "sinks.json"
"""What a conversion of sinks leaves beside the weights: all that was measured."""


@dataclass(frozen=True)
class SinkRequest:
    """Sinks are to become gates, fitted and checked on `text` (a file, folder or corpus)."""

    text: str
    options: SinkOptions = field(default_factory=SinkOptions)


def rewritten(
    model: SourceModel, request: SinkRequest, target: Path, report: Callable[[str], None]
) -> tuple[ModelConfig, State, SinkReport]:
    """The model with gates in place of its sinks, its weights, and what was measured.

    Raises:
        ConfigError: see `gatelm.sinks.convert.sinks_to_gates`; what was measured is then left in
            a file beside the target, which the sentence names.
    """
    texts, _ = read_texts(request.text, option="--sinks-to-gates")
    tokenizer = _tokenizer(model)
    try:
        return sinks_to_gates(model.cfg, model.state, tokenizer, texts, request.options, report)
    except SinkError as error:
        if error.report is None:
            raise
        kept = target.with_name(f"{target.name}-{REPORT}")
        write_json(kept, error.report.to_json())
        raise ConfigError(f"{error}; what was measured: {kept}") from None


def _tokenizer(model: SourceModel) -> TextTokenizer:
    if model.tokenizer is not None:
        return HFTokenizer(model.tokenizer)
    found = open_tokenizer(model.path)
    if found is None:
        raise ConfigError(f"{model.path}: the model has no tokenizer, so it cannot read text")
    return found


def check_written(folder: Path, state: State) -> None:
    """Compare the weights on disk with those that were measured, bit by bit.

    Raises:
        ConfigError: when one differs.
    """
    written = read_weights(folder)
    wrong = [name for name, t in state.items() if not torch.equal(written[name], t)]
    if wrong or written.keys() != state.keys():
        raise ConfigError(f"{folder}: what was written is not what was measured ({wrong[:1]})")


def set_bos(folder: Path, how: str) -> None:
    """Make a folder's tokenizer put BOS "first", or leave it out ("dropped")."""
    if how == "as before":
        return
    settings_file, file = folder / "tokenizer_config.json", folder / "tokenizer.json"
    settings: dict[str, Any] = json.loads(settings_file.read_text(encoding="utf-8"))
    tree = json.loads(file.read_text(encoding="utf-8"))
    bos = settings["bos_token"]
    bos = bos["content"] if isinstance(bos, dict) else bos
    ids = {token["content"]: token["id"] for token in tree["added_tokens"]}
    bos_id = ids.get(bos, tree["model"].get("vocab", {}).get(bos))
    text = [{"Sequence": {"id": "A", "type_id": 0}}]
    second = [{"Sequence": {"id": "B", "type_id": 1}}]
    front = [{"SpecialToken": {"id": bos, "type_id": 0}}] if how == "first" else []
    special = {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}} if how == "first" else {}
    tree["post_processor"] = {
        "type": "TemplateProcessing",
        "single": front + text,
        "pair": front + text + second,
        "special_tokens": special,
    }
    write_json(file, tree)
    write_json(settings_file, {**settings, "add_bos_token": how == "first"})
