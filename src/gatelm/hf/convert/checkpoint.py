"""Read a model to convert: config, tensors as they are on disk, and the files that go with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from gatelm.config import ConfigError, foreign
from gatelm.hf import load
from gatelm.hf.convert.families.registry import recognise
from gatelm.hf.convert.foreign import check_foreign_config
from gatelm.hf.convert.formats.fold import unfold
from gatelm.hf.convert.formats.format import Format
from gatelm.hf.convert.formats.pieces import State
from gatelm.hf.convert.formats.read import read_config
from gatelm.hf.convert.formats.tensors import shapes, to_ours
from gatelm.hf.convert.formats.write import CARRIED, rope_keys
from gatelm.io.weights import read_weights
from gatelm.nn.model import ModelConfig
from gatelm.train.saving.export import is_gatelm_config, parse_config

RECORD = "conversion.json"
"""File beside the weights of a converted model: the source model, and what was done."""

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
"""Names of files that are copied unchanged."""


@dataclass
class SourceModel:
    """A model to convert, in the terms of this package.

    fmt: the format that it was stored in; None for a folder of this package. carried: values of its
    config that are passed on. notes: the steps of reading.
    """

    path: Path
    name: str
    fmt: Format | None
    cfg: ModelConfig
    state: State
    carried: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tokenizer: PreTrainedTokenizerBase | None = None
    """The tokenizer, if there are no files of it to copy (GGUF)."""

    @property
    def family(self) -> str:
        """The name of the format for readers."""
        return self.fmt.label if self.fmt is not None else "gatelm"

    @property
    def dtype(self) -> str:
        """The name of the dtype of the embedding, and so of most weights."""
        return str(self.state["embedding.weight"].dtype).removeprefix("torch.")


def read_source(where: str | Path, *, layout: str | None = None) -> SourceModel:
    """Read a gatelm model or run folder, a Hugging Face folder, a GGUF file or a package with one.

    layout: how q_proj packs the gate, in place of what the family is known to do.

    Raises:
        ConfigError: when it cannot be read, or holds what is not understood, in one sentence.
    """
    with foreign(str(where)):
        return _read(where, layout)


def _read(where: str | Path, layout: str | None) -> SourceModel:
    path = Path(where).expanduser()
    gguf = _gguf(path, str(where))
    if gguf is not None:
        return _from_gguf(gguf)
    if not (path / "config.json").is_file() and (path / "model" / "config.json").is_file():
        path = path / "model"
    tree = read_json(path / "config.json")
    name = path.resolve().parent.name if path.name == "model" else path.resolve().name
    tensors = read_weights(path)
    if is_gatelm_config(tree):
        if layout is not None:
            raise ConfigError("--layout: this package's own folders pack nothing")
        cfg = parse_config(tree, str(path / "config.json"))
        _check_tensors(tensors, cfg, path)
        return SourceModel(path, name, None, cfg, tensors, _carried(tree))
    return _from_tree(path, name, tree, tensors, layout)


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that holds a JSON object.

    Raises:
        ConfigError: when there is none.
    """
    if not path.is_file():
        raise ConfigError(f"{path.parent}: no model here ({path.name} is missing)")
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(f"{path}: cannot be read as JSON") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: holds no JSON object")
    return tree


def _from_tree(
    path: Path, name: str, tree: dict[str, Any], tensors: State, layout: str | None
) -> SourceModel:
    where = str(path / "config.json")
    fmt = recognise(tree, where)
    if layout is not None and fmt.layout is None:
        raise ConfigError(f"--layout {layout}: {fmt.label} packs no gate, so there is no choice")
    _check_dtypes(tensors, str(path))
    cfg, state, notes = _translated(tree, tensors, fmt, layout or fmt.layout, (where, str(path)))
    source = SourceModel(path, name, fmt, cfg, state, _carried(tree), notes)
    if layout is None:
        _restore(source)
    return source


def _translated(
    tree: Mapping[str, Any],
    tensors: State,
    fmt: Format,
    layout: str | None,
    where: tuple[str, str],
) -> tuple[ModelConfig, State, list[str]]:
    """Translate config and weights into our terms; also says what was done. where: for errors."""
    config_at, weights_at = where
    check_foreign_config(tree, config_at)
    cfg = read_config(tree, fmt, config_at)
    plan = fmt.pieces(cfg, tree, layout)
    tensors = _one_embedding(tensors, cfg, fmt, weights_at)
    state, dropped = to_ours(tensors, plan, fmt.left_out, weights_at)
    notes = [f"left out: {len(dropped)} tensors, such as {dropped[0]}"] if dropped else []
    return cfg, state, notes + fmt.adjust(state, cfg, tree)


def _restore(source: SourceModel) -> None:
    """Go back to the model that a conversion of ours started from, if the weights still say so."""
    record = source.path / RECORD
    if not record.is_file() or source.fmt is None or not source.fmt.written:
        return
    original = read_json(record).get("model")
    if not isinstance(original, dict):
        return
    cfg = ModelConfig.parse(original, f"{record}: model")
    if rope_keys(cfg, source.fmt) != rope_keys(source.cfg, source.fmt):
        source.notes.append(f"{RECORD} names other positions than config.json; not used")
        return
    try:
        state = unfold(cfg, source.state, source.fmt)
    except (ConfigError, KeyError, RuntimeError):
        state = None
    if state is None:
        source.notes.append(f"{RECORD} names a model that the weights no longer fit; not used")
        return
    source.cfg, source.state = cfg, state
    source.notes.append(f"restored to the model it was converted from, by {RECORD}")


def _one_embedding(tensors: State, cfg: ModelConfig, fmt: Format, where: str) -> State:
    """Leave out a tied model's head, which may be stored in place of the embedding.

    Raises:
        ConfigError: where config and weights contradict each other.
    """
    head_name, name = (f"{fmt.names.root[module]}.weight" for module in ("head", "embedding"))
    head, embedding = tensors.get(head_name), tensors.get(name)
    if cfg.head == "untied" and head is None:
        raise ConfigError(
            f"{where}: tie_word_embeddings is false, but {head_name} is missing; set it true "
            "if the head is the embedding"
        )
    if cfg.head == "untied" or head is None:
        return tensors
    if embedding is not None and not torch.equal(head, embedding):
        raise ConfigError(
            f"{where}: tie_word_embeddings is true, but {head_name} differs from the "
            "embedding; one of them is wrong"
        )
    return {**{n: t for n, t in tensors.items() if n != head_name}, name: head}


def _check_dtypes(tensors: State, where: str) -> None:
    wrong = sorted(name for name, t in tensors.items() if t.dtype not in load.DTYPES.values())
    if wrong:
        raise ConfigError(
            f"{where}: {wrong[0]} has dtype {str(tensors[wrong[0]].dtype).removeprefix('torch.')}; "
            "only float64, float32, float16 and bfloat16 weights are converted"
        )


def _check_tensors(tensors: State, cfg: ModelConfig, path: Path) -> None:
    if cfg.vocab_size is None:
        raise ConfigError(f"{path / 'config.json'}: model.vocab_size is missing")
    _check_dtypes(tensors, str(path))
    expected = shapes(cfg)
    for names, problem in (
        (sorted(set(tensors) - set(expected)), "not part of this model"),
        (sorted(set(expected) - set(tensors)), "missing"),
    ):
        if names:
            raise ConfigError(f"{path}: {', '.join(names[:5])}: {problem}")
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            found = list(tensors[name].shape)
            raise ConfigError(f"{path}: {name}: is {found}, but config.json makes {list(shape)}")


def _gguf(path: Path, where: str) -> Path | None:
    if path.is_dir():
        found = sorted(path.glob("*.gguf"))
        has_config = (path / "config.json").is_file() or (path / "model").is_dir()
        return load._only(found, str(path)) if found and not has_config else None
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigError(f"{where}: there is no such file")
        return path
    if path.is_file():
        raise ConfigError(f"{where}: name the folder that holds config.json and the weights")
    return load._gguf_in_package(where)


def _from_gguf(path: Path) -> SourceModel:
    """Read a GGUF file by transformers, dequantised to float32."""
    model: Any = load.gguf_model(path, torch.float32)
    tree = {k: v for k, v in model.config.to_dict().items() if v is not None}
    where = str(path)
    fmt = recognise(tree, where)
    tree.pop("quantization_config", None)
    tensors = {name: t.detach().clone() for name, t in model.state_dict().items()}
    cfg, state, notes = _translated(tree, tensors, fmt, fmt.layout, (where, where))
    tokenizer = AutoTokenizer.from_pretrained(
        path.parent, gguf_file=path.name, local_files_only=True
    )
    notes.insert(0, "dequantised from GGUF to float32")
    return SourceModel(path, path.stem, fmt, cfg, state, _carried(tree), notes, tokenizer)


def _carried(tree: Mapping[str, Any]) -> dict[str, Any]:
    inner = tree.get("text_config")
    tree = {**tree, **inner} if isinstance(inner, Mapping) else tree
    return {key: tree[key] for key in CARRIED if tree.get(key) is not None}
