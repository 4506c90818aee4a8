"""The final model as a folder: config, weights, tokenizer and model card.

Libraries that read Hugging Face folders read it too (`hf.modeling.wrapper` is its model class).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers.processors import TemplateProcessing

from gatelm.config import ConfigError
from gatelm.data.errors import DataError
from gatelm.data.tokenizer import Tokenizer, load_tokenizer
from gatelm.io.files import write_json, writing
from gatelm.io.folders import whole_folder
from gatelm.io.weights import WEIGHTS, read_weights, write_weights
from gatelm.nn.count import count
from gatelm.nn.model import Decoder, ModelConfig

CONFIG, TOKENIZER, CARD = "config.json", "tokenizer.json", "README.md"
TOKENIZER_CONFIG, GENERATION_CONFIG = "tokenizer_config.json", "generation_config.json"
CONTEXT, TOKEN_IDS = "max_position_embeddings", ("bos_token_id", "eos_token_id", "pad_token_id")
MODEL_TYPE, ARCHITECTURE = "gatelm", "GatelmForCausalLM"


def export_model(
    folder: Path,
    model: Decoder,
    tokenizer: Tokenizer | None,
    facts: dict[str, str],
    *,
    context_tokens: int | None = None,
    trained_from: Path | None = None,
) -> None:
    """Write the model folder in one step, in place of an older one.

    Args:
        facts: what the card says about the training, label to value.
        context_tokens: the length of the rows it was trained on.
        trained_from: the folder of the model that it was trained from, whose tokenizer, chat
            template and longer context go on to hold.

    Raises:
        WriteError: when it cannot be written; an older model is untouched then.
    """
    with whole_folder(folder) as unfinished, writing(folder):
        write_json(
            unfinished / CONFIG, config_tree(model, tokenizer, context_tokens=context_tokens)
        )
        write_weights(unfinished, model.state_dict())
        if tokenizer is not None:
            write_tokenizer(
                unfinished,
                tokenizer,
                context_tokens=context_tokens,
                unused_ids=tokenizer.unused_ids(model.cfg.vocab_size or 0),
            )
        if trained_from is not None:
            _carry_over(trained_from, unfinished)
        (unfinished / CARD).write_text(model_card(model.cfg, facts), encoding="utf-8")


def load_model(folder: Path | str) -> tuple[Decoder, Tokenizer | None]:
    """Load the model (fp32, evaluation mode, on the CPU) and tokenizer of a model or run folder.

    Raises:
        ConfigError: when a file is missing, damaged, or does not fit the config.
    """
    found = find_model(Path(folder))
    if found is None:
        raise ConfigError(f"{folder}: not a model folder ({CONFIG} is missing)")
    folder = found
    try:
        tree = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except ValueError:
        raise ConfigError(f"{folder / CONFIG}: not valid JSON") from None
    model = Decoder(parse_config(tree, str(folder / CONFIG)))
    weights = read_weights(folder)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{folder}: {WEIGHTS} does not fit {CONFIG}: {problem:.300}") from None
    return model.eval(), read_tokenizer(folder)


def find_model(folder: Path) -> Path | None:
    """Find the folder with config.json: a model folder itself, or the model/ of a run folder."""
    return next((f for f in (folder, folder / "model") if (f / CONFIG).is_file()), None)


def is_gatelm_config(tree: Any) -> bool:
    """Whether the content of a config.json is a model of this package."""
    if not isinstance(tree, dict):
        return False
    return tree.get("model_type") == MODEL_TYPE or ("layer" in tree and "model_type" not in tree)


def parse_config(tree: Any, where: str) -> ModelConfig:
    """Parse the model in a config.json: its `model` tree, or in older files the whole.

    Raises:
        ConfigError: when it is none, or says two things about the head.
    """
    if not is_gatelm_config(tree):
        kind = tree.get("model_type") if isinstance(tree, dict) else None
        of = f"it is one of model_type {kind!r}" if kind else "it has no model_type"
        raise ConfigError(f"{where}: not a config of gatelm ({of})")
    if "model_type" not in tree:
        return ModelConfig.parse(tree, where)
    if not isinstance(tree.get("model"), dict):
        raise ConfigError(f"{where}: model: the tree of the model's config is missing")
    if outside := sorted(set(tree) & set(ModelConfig.model_fields)):
        raise ConfigError(f"{where}: {outside[0]}: stands beside model; it belongs inside it")
    cfg = ModelConfig.parse(tree["model"], f"{where}: model")
    tied = tree.get("tie_word_embeddings", cfg.head == "tied")
    if tied != (cfg.head == "tied"):
        raise ConfigError(
            f"{where}: tie_word_embeddings is {str(tied).lower()}, but model.head is {cfg.head!r}; "
            "make them agree with the weights"
        )
    return cfg


def config_tree(
    model: Decoder, tokenizer: Tokenizer | None, *, context_tokens: int | None = None
) -> dict[str, Any]:
    """Return the content of config.json."""
    tree: dict[str, Any] = {
        "architectures": [ARCHITECTURE],
        "model_type": MODEL_TYPE,
        "dtype": str(model.embedding.weight.dtype).removeprefix("torch."),
        "tie_word_embeddings": model.cfg.head == "tied",
        "model": model.cfg.tree(),
    }
    if context_tokens is not None:
        tree["max_position_embeddings"] = context_tokens
    return tree if tokenizer is None else {**tree, **_special_ids(tokenizer)}


def write_tokenizer(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    context_tokens: int | None = None,
    unused_ids: Sequence[int] = (),
) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json.

    Others encode as training did: BOS in front, and special tokens never read from text. They never
    generate `unused_ids`.
    """
    with_bos = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    with_bos.post_processor = TemplateProcessing(
        single=[tokenizer.bos, "$A"],
        pair=[tokenizer.bos, "$A", "$B:1"],
        special_tokens=[(tokenizer.bos, tokenizer.bos_id)],
    )
    (folder / TOKENIZER).write_text(with_bos.to_str(pretty=False), encoding="utf-8")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.bos,
        "eos_token": tokenizer.eos,
        "pad_token": tokenizer.eos,
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }
    if context_tokens is not None:
        config["model_max_length"] = context_tokens
    write_json(folder / TOKENIZER_CONFIG, config)
    suppressed = {"suppress_tokens": list(unused_ids)} if unused_ids else {}
    write_json(folder / GENERATION_CONFIG, _special_ids(tokenizer) | suppressed)


def model_card(cfg: ModelConfig, facts: dict[str, str]) -> str:
    """Write the text of the model folder's README.md."""
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
pipeline_tag: text-generation
tags: [gated-attention]
---

# Decoder-only language model trained with gatelm

| | |
|---|---|
{table}

`config.json` holds the model's config, `model.safetensors` its weights by parameter name. With
`gatelm` installed, `gatelm generate path/to/this/folder --prompt "..."` continues a text. In
Python:

    import gatelm  # makes the model known to transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")
    tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")

or, as a plain torch module with a tokenizer of gatelm:

    model, tokenizer = gatelm.load_model("path/to/this/folder")
"""


def _carry_over(old: Path, new: Path) -> None:
    """Copy the other files of a folder from an older folder of the model."""
    before, after = _read_tree(old / CONFIG), _read_tree(new / CONFIG)
    kept = {name: before[name] for name in TOKEN_IDS if before.get(name) is not None}
    lengths = [tree[CONTEXT] for tree in (before, after) if tree.get(CONTEXT) is not None]
    longest = {CONTEXT: max(lengths)} if lengths else {}
    write_json(new / CONFIG, {**after, **kept, **longest})
    for name in (TOKENIZER, TOKENIZER_CONFIG, "chat_template.jinja", "special_tokens_map.json"):
        if (old / name).is_file():
            shutil.copyfile(old / name, new / name)
    settings = {**kept, **_read_tree(old / GENERATION_CONFIG)}
    # texts end where they did, and where those of the later training end
    ends = dict.fromkeys([*_ids(settings), *_ids(after)])
    if ends:
        settings["eos_token_id"] = [*ends] if len(ends) > 1 else next(iter(ends))
        write_json(new / GENERATION_CONFIG, settings)


def _ids(tree: dict[str, Any]) -> list[int]:
    value = tree.get("eos_token_id")
    return value if isinstance(value, list) else [] if value is None else [value]


def _read_tree(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def read_tokenizer(folder: Path) -> Tokenizer | None:
    path, config = folder / TOKENIZER, folder / TOKENIZER_CONFIG
    if not path.is_file():
        return None
    try:
        return load_tokenizer(path)
    except DataError:
        # A vocabulary without the usual names: others say here which tokens begin and end a text.
        if not config.is_file():
            raise
        tree = json.loads(config.read_text(encoding="utf-8"))
        found = (tree.get("bos_token"), tree.get("eos_token"))
        names = [token["content"] if isinstance(token, dict) else token for token in found]
        if names == [None, None]:
            raise
        return load_tokenizer(path, *names)


def _special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    return {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": eos}
