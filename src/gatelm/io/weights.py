"""Weights on disk: only safetensors files, and only inside their folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from gatelm.config import ConfigError
from gatelm.io.files import write_json

SHARD_BYTES = 5 * 10**9
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """List the safetensors files with a model's weights: those in its index, or else all.

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
    """Read the names of a safetensors file's tensors from its header.

    Raises:
        ConfigError: when the file is damaged or truncated.
    """
    try:
        with safe_open(file, framework="pt") as tensors:
            return list(tensors.keys())
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{file}: the model cannot be loaded: {error}") from None


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder's weight files by name, on the CPU, in the files' dtype.

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


def check_finite(tensors: Iterable[tuple[str, Tensor]], where: str) -> None:
    """Refuse weights that are not finite.

    Args:
        tensors: names and weights, such as `model.named_parameters()`.

    Raises:
        ConfigError: naming the first tensor with NaN or infinity, and how many others there are.
    """
    wrong = [name for name, t in tensors if t.is_floating_point() and not bool(t.isfinite().all())]
    if wrong:
        more = f", and {len(wrong) - 1} more tensors" if len(wrong) > 1 else ""
        raise ConfigError(f"{where}: {wrong[0]}: holds NaN or infinity{more}")


def write_weights(
    folder: Path, state: Mapping[str, Tensor], shard_bytes: int = SHARD_BYTES
) -> None:
    """Write tensors by name as safetensors: one file, or shards with an index."""
    tensors: dict[str, Tensor] = {}
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        if tensor.untyped_storage().nbytes() != tensor.nbytes:
            tensor = tensor.clone()
        tensors[name] = tensor
    split = split_torch_state_dict_into_shards(tensors, max_shard_size=shard_bytes)
    umask = os.umask(0)
    os.umask(umask)
    for file, names in split.filename_to_tensors.items():
        save_file({n: tensors[n] for n in names}, folder / file, metadata={"format": "pt"})
        # safetensors writes through a private temporary file
        (folder / file).chmod(0o666 & ~umask)
    if split.is_sharded:
        places = dict(sorted(split.tensor_to_filename.items()))
        index = {"metadata": split.metadata, "weight_map": places}
        write_json(folder / WEIGHTS_INDEX, index)


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
