"""The final model as a folder: config, weights, tokenizer and model card."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from gatelm.config import ConfigError
from gatelm.data.tokenizer import Tokenizer, load_tokenizer
from gatelm.nn.count import count
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.train.files import sync, write_json, writing

CONFIG, WEIGHTS, TOKENIZER, CARD = "config.json", "model.safetensors", "tokenizer.json", "README.md"


def export_model(
    folder: Path, model: Decoder, tokenizer: Tokenizer | None, facts: dict[str, str]
) -> None:
    """Write the model folder in one step, in place of an older one.

    Args:
        facts: what the card says about the training, label to value.

    Raises:
        WriteError: when it cannot be written; an older model is untouched then.
    """
    unfinished = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with writing(folder):
            unfinished.mkdir(parents=True)
            _write(unfinished, model, tokenizer, facts)
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
            sync(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def load_model(folder: Path | str) -> tuple[Decoder, Tokenizer | None]:
    """The model (in evaluation mode, on the CPU) and tokenizer of a model or run folder.

    Raises:
        ConfigError: when a file is missing, damaged, or does not fit the config.
    """
    folder = Path(folder)
    if not (folder / CONFIG).is_file() and (folder / "model" / CONFIG).is_file():
        folder = folder / "model"
    if not (folder / CONFIG).is_file():
        raise ConfigError(f"{folder}: not a model folder ({CONFIG} is missing)")
    try:
        tree = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except ValueError:
        raise ConfigError(f"{folder / CONFIG}: not valid JSON") from None
    model = Decoder(ModelConfig.parse(tree, str(folder / CONFIG)))
    try:
        weights = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{folder / WEIGHTS}: cannot be read ({error})") from None
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{folder}: {WEIGHTS} does not fit {CONFIG}: {problem:.300}") from None
    path = folder / TOKENIZER
    return model.eval(), load_tokenizer(path) if path.is_file() else None


def model_card(cfg: ModelConfig, facts: dict[str, str]) -> str:
    """README.md of the model folder."""
    parameters = count(cfg)
    at_sites = {f"{gate.kind} at `{gate.site}`" for layer in cfg.layers() for gate in layer.gates}
    rows = {
        "Layers": str(cfg.num_layers),
        "Width": str(cfg.hidden_dim),
        "Vocabulary": str(cfg.vocab_size),
        "Parameters": f"{parameters.total:,}",
        "Parameters in gates": f"{parameters.gate:,}",
        "At the sites": ", ".join(sorted(at_sites)) or "nothing",
        **facts,
    }
    table = "\n".join(f"| {label} | {value} |" for label, value in rows.items())
    return f"""---
library_name: gatelm
tags: [gated-attention]
---

# Decoder-only language model trained with gatelm

| | |
|---|---|
{table}

`config.json` holds the model's config, `model.safetensors` its weights by parameter name. Load:

    from gatelm.train.export import load_model
    model, tokenizer = load_model("path/to/this/folder")
"""


def _write(
    folder: Path, model: Decoder, tokenizer: Tokenizer | None, facts: dict[str, str]
) -> None:
    write_json(folder / CONFIG, model.cfg.tree())
    weights = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    # safetensors writes through a private temporary file; the model is for everyone to read.
    (folder / WEIGHTS).chmod(0o666 & ~_umask())
    if tokenizer is not None:
        tokenizer.save(folder / TOKENIZER)
    (folder / CARD).write_text(model_card(model.cfg, facts), encoding="utf-8")
    for path in folder.iterdir():
        sync(path)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
