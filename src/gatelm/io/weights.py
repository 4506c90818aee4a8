"""Which files of a folder hold its weights: safetensors alone, and inside the folder alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from gatelm.config import ConfigError

WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files with a model's weights: those its index names, or else all.

    Raises:
        ConfigError: for pickled weights (opening them can run code), for a shard that is missing or
            lies outside the folder, and for several files without an index.
    """
    index = folder / WEIGHTS_INDEX
    if index.is_file():
        return _indexed(folder, index)
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    files = sorted(folder.glob("*.safetensors"))
    if len(files) > 1:
        raise ConfigError(f"{folder}: several weight files, but no {index.name}")
    if not files and (any(folder.glob("*.bin")) or any(folder.glob("*.pt"))):
        raise ConfigError(
            f"{folder}: the weights are pickled, which can run code when opened; save them as "
            "safetensors first (load where you trust them, then save_pretrained)"
        )
    if not files:
        raise ConfigError(f"{folder}: config.json is there, but no .safetensors with the weights")
    return files


def tensor_names(file: Path) -> list[str]:
    """The names of a safetensors file's tensors, from its header.

    Raises:
        ConfigError: when the file is damaged or truncated.
    """
    try:
        with safe_open(file, framework="pt") as tensors:
            return list(tensors.keys())
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{file}: the model cannot be loaded: {error}") from None


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's weight files, by name, on the CPU and in the dtype of the files.

    Raises:
        ConfigError: see `weight_files`; also for a damaged file and for values that are not finite.
    """
    weights: dict[str, Tensor] = {}
    for file in weight_files(folder):
        try:
            weights |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"{file}: cannot be read; it is damaged or truncated ({error})"
            ) from None
    check_finite(weights.items(), str(folder))
    return weights


@torch.no_grad()
def check_finite(tensors: Iterable[tuple[str, Tensor]], where: str) -> None:
    """
    Raises:
        ConfigError: naming the first tensor that holds a NaN or an infinity.
    """
    for name, tensor in tensors:
        if tensor.is_floating_point() and tensor.numel() and not tensor.isfinite().all():
            raise ConfigError(
                f"{where}: {name} holds values that are not finite (NaN or infinity); the model "
                "would compute nothing else"
            )


def _indexed(folder: Path, index: Path) -> list[Path]:
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, LookupError, TypeError, RecursionError):
        places = None
    if not isinstance(places, Mapping) or not all(isinstance(p, str) for p in places.values()):
        raise ConfigError(f"{index}: not an index of weights (it has no weight_map)")
    names = sorted(set(places.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ConfigError(
                f"{index}: names {name!r} as a file of weights; only .safetensors files in the "
                "same folder are opened"
            )
    if absent := [name for name in names if not (folder / name).is_file()]:
        raise ConfigError(
            f"{folder}: {len(absent)} of {len(names)} weight files are missing, such as {absent[0]}"
        )
    here = {name: set(tensor_names(folder / name)) for name in names}
    for tensor, name in places.items():
        if tensor not in here[name]:
            raise ConfigError(f"{folder}: {tensor} is not in {name}, where {index.name} has it")
    return [folder / name for name in names]
