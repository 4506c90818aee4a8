"""Open a causal language model in a folder, a GGUF file or an installed package.

Nothing is downloaded, no code of a checkpoint runs, and nothing is unpickled.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tokenizers
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.models.auto.configuration_auto import (
    CONFIG_MAPPING_NAMES,  # pyright: ignore[reportPrivateImportUsage]
)
from transformers.utils import logging

from gatelm.analysis.probe.gatelm_probe import GatelmProbe
from gatelm.analysis.probe.protocol import Probe, TextTokenizer
from gatelm.config import ConfigError, foreign
from gatelm.config.base import nearest
from gatelm.hf import gguf
from gatelm.hf.convert.foreign import check_foreign_config
from gatelm.hf.modeling.paper_release import PaperForCausalLM, is_paper_release, paper_config
from gatelm.hf.probe.hf_probe import HFProbe
from gatelm.hf.probe.tokenizer import GatelmTokenizer, HFTokenizer
from gatelm.io.weights import check_finite, tensor_names, weight_files
from gatelm.nn.device import device_of
from gatelm.train.saving.export import (
    CONTEXT,
    GENERATION_CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    is_gatelm_config,
    load_model,
    read_tokenizer,
)

DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "float64": torch.float64,
}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model", "vocab.txt")
_ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_PACKAGE_NAME = re.compile(r"[A-Za-z][\w-]*")


UnknownTensors = Literal["refuse", "ignore"]
"""What to do with tensors of a checkpoint that the architecture in its config does not have."""


@dataclass(frozen=True)
class _Opening:
    """Options for opening a model. dtype: None for the checkpoint's own."""

    device: torch.device
    dtype: torch.dtype | None
    unknown_tensors: UnknownTensors


def open_model(
    where: str | Path,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "float32",
    unknown_tensors: UnknownTensors = "refuse",
) -> tuple[Probe, TextTokenizer | None]:
    """Open the model at `where` as a probe, and its tokenizer if it has one.

    where: a run or model folder of this package, a folder with config.json and safetensors, a GGUF
        file (or a folder with one), or the name of an installed package that carries a GGUF.
    device: "auto" takes a GPU when there is one. dtype: a name of `DTYPES`, or "auto": the
        checkpoint's own (float32 for models of this package and for GGUF).
    unknown_tensors: "refuse" tensors that the architecture does not have (a gate, for instance, in
        a checkpoint that calls itself an ungated model), or "ignore" them.

    Raises:
        ConfigError: in one sentence, whatever the reason it cannot be opened.
    """
    how = _Opening(device_of(device), _dtype(dtype), unknown_tensors)
    with foreign(str(where)):
        return _open(where, how)


def _open(where: str | Path, how: _Opening) -> tuple[Probe, TextTokenizer | None]:
    path = Path(where).expanduser()
    if path.is_file() or path.suffix == ".gguf":
        if path.suffix != ".gguf":
            raise ConfigError(
                f"{where}: this file is no GGUF; name the folder that holds config.json and the "
                "weights instead"
            )
        if not path.is_file():
            raise ConfigError(f"{where}: there is no such file")
        return _from_gguf(path, how)
    if path.is_dir():
        return _from_folder(path, how)
    return _from_gguf(_gguf_in_package(str(where)), how)


def open_reader(
    where: str | Path,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "float32",
    unknown_tensors: UnknownTensors = "refuse",
    purpose: str = "read text",
) -> tuple[Probe, TextTokenizer]:
    """Open a model that must have a tokenizer, for the `purpose` named in the error.

    Raises:
        ConfigError: when it cannot be opened, or has no tokenizer.
    """
    probe, tokenizer = open_model(
        where, device=device, dtype=dtype, unknown_tensors=unknown_tensors
    )
    if tokenizer is None:
        raise ConfigError(f"{where}: the model has no tokenizer, so it cannot {purpose}")
    return probe, tokenizer


def open_tokenizer(path: Path) -> TextTokenizer | None:
    """The tokenizer of a model folder, of this package or of transformers; None without one."""
    tree = json.loads((path / "config.json").read_text(encoding="utf-8"))
    if is_gatelm_config(tree):
        inner = read_tokenizer(path)
        if inner is None:
            return None
        return GatelmTokenizer(inner, adds_bos=_adds_bos(path, inner.bos_id))
    return _tokenizer(path)


def stated_context(where: str | Path, probe: Probe) -> int | None:
    """Return the context length in tokens that an opened model's config states, if it does."""
    if isinstance(probe, HFProbe):
        config = probe.model.config.get_text_config()
        return getattr(config, "max_position_embeddings", None)
    for folder in (Path(where).expanduser(), Path(where).expanduser() / "model"):
        if (folder / "config.json").is_file():
            tree = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            return tree.get(CONTEXT)
    return None


def _dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype != "auto" and dtype not in DTYPES:
        raise ConfigError(f"unknown dtype {dtype!r}; {nearest(dtype, ('auto', *DTYPES))}")
    return DTYPES.get(dtype)


def _from_folder(path: Path, how: _Opening) -> tuple[Probe, TextTokenizer | None]:
    config = path / "config.json"
    if not config.is_file():
        if (path / "model" / "config.json").is_file():
            return _from_folder(path / "model", how)
        if files := sorted(path.glob("*.gguf")):
            return _from_gguf(_only(files, str(path)), how)
        raise ConfigError(_why_no_model(path))
    try:
        tree = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(f"{config}: cannot be read as JSON") from None
    if is_gatelm_config(tree):
        return _gatelm(path, how)
    if not isinstance(tree, dict) or not isinstance(tree.get("model_type"), str):
        raise ConfigError(
            f"{config}: neither a config of gatelm (it has no layer) nor one of transformers (it "
            "has no model_type)"
        )
    check_foreign_config(tree, str(config))
    check_attention_names(tree, str(config))
    _check_settings(path / GENERATION_CONFIG)
    return HFProbe(_load(path, tree, how), _name(path)), _tokenizer(path)


def _gatelm(path: Path, how: _Opening) -> tuple[Probe, TextTokenizer | None]:
    model, _ = load_model(path)
    model = model.to(device=how.device, dtype=how.dtype or torch.float32)
    name = path.resolve().parent.name if path.name == "model" else path.name
    return GatelmProbe(model, name), open_tokenizer(path)


def _adds_bos(path: Path, bos_id: int) -> bool:
    """Whether tokenizer.json puts BOS first, as it does for models trained here."""
    if not (path / TOKENIZER_CONFIG).is_file():
        return True  # written before tokenizer.json said so
    ids = tokenizers.Tokenizer.from_file(str(path / TOKENIZER)).encode("a").ids
    return ids[:1] == [bos_id]


def _why_no_model(path: Path) -> str:
    names = {file.name for file in path.iterdir()}
    if "adapter_config.json" in names:
        return f"{path}: this is an adapter; merge it into its base model and save that first"
    if "config.yaml" in names and (path / "checkpoints").is_dir():
        return f"{path}: the run has no model/ yet; it is written when the run ends"
    if path.is_dir() and any(name.endswith(".safetensors") for name in names):
        return f"{path}: the weights' config.json is missing"
    return f"{path}: no model here (no config.json, no GGUF)"


def _check_settings(file: Path) -> None:
    """
    Raises:
        ConfigError: for a file of settings that is there and no JSON object: transformers passes
            over it, and with it over what ends a text.
    """
    if not file.is_file():
        return
    try:
        is_object = isinstance(json.loads(file.read_text(encoding="utf-8")), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise ConfigError(f"{file}: cannot be read as a JSON object; mend it, or remove it")


def check_attention_names(tree: Mapping[str, Any], where: str) -> None:
    """Refuse names of attention functions that transformers would download and run.

    Raises:
        ConfigError: for a name that is not one of transformers' own, such as that of a repository.
    """
    for key, value in tree.items():
        if isinstance(value, Mapping):
            check_attention_names(value, f"{where}: {key}")
        elif key.strip("_").startswith("attn_implementation") and value not in (None, *_ATTENTION):
            raise ConfigError(
                f"{where}: {key} {value!r}: only {', '.join(_ATTENTION)} are used; code of a "
                "checkpoint or a hub is not run"
            )


def _load(path: Path, tree: dict[str, Any], how: _Opening) -> PreTrainedModel:
    files = weight_files(path)
    if is_paper_release(tree):
        config: PreTrainedConfig = paper_config(tree, str(path / "config.json"))
        return _pretrained(PaperForCausalLM.from_pretrained, path, how, config=config)
    kind = tree["model_type"]
    if kind not in CONFIG_MAPPING_NAMES:
        own = "auto_map" in tree
        raise ConfigError(
            f"{path}: the installed transformers has no model type {kind!r}"
            + (", and code that comes with a checkpoint is not run" if own else "")
            + "; a newer transformers may have it"
        )
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ConfigError(f"{path / 'config.json'}: {_first_line(error)}") from None
    tensors = sum(len(tensor_names(file)) for file in files)
    gguf.check_layers(config, tensors, str(path / "config.json"))
    for auto in (AutoModelForCausalLM, AutoModelForImageTextToText):
        if type(config) in auto._model_mapping:  # pyright: ignore[reportAttributeAccessIssue]
            return _pretrained(auto.from_pretrained, path, how, config=config)
    raise ConfigError(f"{path}: {kind} is no causal language model")


def _pretrained(
    load: Callable[..., Any], path: Path, how: _Opening, **settings: Any
) -> PreTrainedModel:
    """Load weights, or one ConfigError: also for those missing, which the library makes up, for
    those left over, which it passes over, and for values that are not finite."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model, info = load(
            path,
            dtype=how.dtype or "auto",
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **settings,
        )
    except Exception as error:
        raise ConfigError(f"{path}: the model cannot be loaded: {_first_line(error)}") from None
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()
    missing = sorted(info.get("missing_keys", ()))
    wrong = sorted(str(entry[0]) for entry in info.get("mismatched_keys", ()))
    for keys, what in ((missing, "missing"), (wrong, "of another shape")):
        if keys:
            raise ConfigError(
                f"{path}: {len(keys)} weights are {what}, such as {keys[0]}; the model would run "
                "on random numbers"
            )
    unknown = sorted(info.get("unexpected_keys", ()))
    if unknown and how.unknown_tensors == "refuse":
        raise ConfigError(unknown_sentence(str(path), type(model).__name__, unknown))
    check_finite(model.named_parameters(), str(path))
    nn.Module.to(model, how.device)
    return model.eval()


def unknown_sentence(where: str, architecture: str, names: Sequence[str]) -> str:
    """Say why a checkpoint with tensors that its architecture lacks is refused."""
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return (
        f"{where}: {architecture} has no place for {len(names)} of the tensors ({shown}); the "
        "model would run without them. Is model_type right? --ignore-unknown-tensors goes on"
    )


def _from_gguf(path: Path, how: _Opening) -> tuple[Probe, TextTokenizer | None]:
    model = gguf_model(path, how.dtype or torch.float32, how.device, how.unknown_tensors)
    return HFProbe(model, path.stem), _tokenizer(path.parent, gguf_file=path.name)


def gguf_model(
    path: Path,
    dtype: torch.dtype,
    device: torch.device | None = None,
    unknown_tensors: UnknownTensors = "refuse",
) -> PreTrainedModel:
    """Open the model of a GGUF file, dequantised and completed by `hf.gguf.read_model`."""
    how = _Opening(device or torch.device("cpu"), dtype, unknown_tensors)
    load = partial(_pretrained, AutoModelForCausalLM.from_pretrained, path.parent, how)
    model = gguf.read_model(path, load)
    unknown = gguf.unknown_tensors(path, model)
    if unknown and unknown_tensors == "refuse":
        raise ConfigError(unknown_sentence(str(path), type(model).__name__, unknown))
    return model


def _gguf_in_package(where: str) -> Path:
    """Find the one GGUF file inside an installed package, without importing the package."""
    module = where.replace("-", "_")
    if _PACKAGE_NAME.fullmatch(where) and (spec := importlib.util.find_spec(module)):
        folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
        files = sorted(file for folder in folders for file in folder.rglob("*.gguf"))
        if not files:
            raise ConfigError(f"{where}: the package is installed, but carries no GGUF file")
        return _only(files, f"the package {where}")
    if _HUB_NAME.fullmatch(where):
        raise ConfigError(
            f"{where}: no such folder; models are not downloaded here, so fetch it first "
            f"(hf download {where} --local-dir FOLDER) and name the folder"
        )
    raise ConfigError(f"{where}: no such file or folder, and no installed package of this name")


def _only(files: list[Path], where: str) -> Path:
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:5])
        raise ConfigError(f"{where} has {len(files)} GGUF files ({names}); name one of them")
    return files[0]


def _tokenizer(folder: Path, **settings: Any) -> HFTokenizer | None:
    if not settings and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        inner = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **settings
        )
    except Exception as error:
        raise ConfigError(f"{folder}: the tokenizer cannot be read: {_first_line(error)}") from None
    finally:
        logging.set_verbosity(level)
    return HFTokenizer(inner)


def _name(path: Path) -> str:
    return path.resolve().name


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{lines[0].strip():.300}" if lines else type(error).__name__
