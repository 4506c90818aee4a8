"""Weights as safetensors files, and the checks of weights that others may need, too."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file

from gatelm.config import ConfigError
from gatelm.io.files import write_json
from gatelm.nn.shapes import Tensor

SHARD_BYTES = 5 * 10**9

_KEPT_IN_FLOAT32 = re.compile(r"\.A_log$|\.linear_attn\.norm\.weight$|\.attn\.out_norm\.weight$")


def is_rounded(name: str) -> bool:
    """Whether a tensor takes another dtype with the rest of the model.

    The decays of recurrent layers (A_log) and the norm after their heads do not: published
    checkpoints keep them in float32 beside bfloat16 weights. Names are those of this package or of
    transformers.
    """
    return _KEPT_IN_FLOAT32.search(name) is None


def rounded(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors in another dtype, but for those that `is_rounded` leaves as they are.

    Raises:
        ConfigError: for a number that leaves the range of the dtype.
    """
    out = {name: t.to(dtype) if is_rounded(name) else t for name, t in state.items()}
    check_finite(out.items(), f"rounded to {str(dtype).removeprefix('torch.')}")
    return out


def check_finite(tensors: Iterable[tuple[str, Tensor]], where: str) -> None:
    """Refuse weights that are not numbers.

    Args:
        tensors: names and weights, such as `model.named_parameters()`.

    Raises:
        ConfigError: naming the first tensor with NaN or infinity, and how many others there are.
    """
    wrong = [name for name, t in tensors if t.is_floating_point() and not bool(t.isfinite().all())]
    if wrong:
        more = f", and {len(wrong) - 1} more tensors" if len(wrong) > 1 else ""
        raise ConfigError(f"{where}: {wrong[0]}: holds NaN or infinity{more}")


def write_weights(folder: Path, state: Mapping[str, Tensor], shard_bytes: int) -> None:
    """Write safetensors with `format: pt`: one file, or shards with an index."""
    tensors: dict[str, Tensor] = {}
    for name in sorted(state):
        tensor = state[name].detach().contiguous()
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
        write_json(folder / "model.safetensors.index.json", index)
