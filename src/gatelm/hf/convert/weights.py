"""The cast of weights to another dtype: which tensors are rounded, which stay in float32."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from gatelm.io.weights import check_finite
from gatelm.nn.shapes import Tensor

_KEPT_IN_FLOAT32 = re.compile(r"\.A_log$|\.linear_attn\.norm\.weight$|\.attn\.out_norm\.weight$")


def is_rounded(name: str) -> bool:
    """Whether a tensor takes another dtype with the rest of the model.

    The decays of recurrent layers (A_log) and the norm after their heads do not: published
    checkpoints keep them in float32 beside bfloat16 weights. Names are those of this package or of
    transformers.
    """
    return _KEPT_IN_FLOAT32.search(name) is None


def rounded(state: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Cast the tensors to another dtype, except those that `is_rounded` excludes.

    Raises:
        ConfigError: for a number that leaves the range of the dtype.
    """
    out = {name: t.to(dtype) if is_rounded(name) else t for name, t in state.items()}
    check_finite(out.items(), f"rounded to {str(dtype).removeprefix('torch.')}")
    return out
