"""Replace tensors at named taps while a model runs: what does the model do without them?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from gatelm.analysis.probe.recording import find_taps
from gatelm.nn.shapes import Bool, Tensor

Change = Callable[[int, Tensor], Tensor]
"""From the layer's index and the tensor at a tap to the tensor the model goes on with."""


@contextmanager
def intervene(
    model: nn.Module, changes: Mapping[str, Change], *, layers: Iterable[int] | None = None
) -> Iterator[None]:
    """While the block runs, the tensor at each tap becomes `changes[tap](layer, tensor)`.

    The new tensor has the old one's shape and dtype. Gradients flow through it. Nothing is hooked
    after the block, also when it raises. Enter `record` inside `intervene` to read changed tensors.

    Raises:
        ValueError: for a tap or layer the model does not have, or a change of shape or dtype.
    """
    chosen = None if layers is None else list(layers)
    with ExitStack() as hooks:
        for tap, change in changes.items():
            for layer, module in find_taps(model, tap, chosen):
                hook = _changing(change, layer, tap)
                hooks.callback(module.register_forward_hook(hook).remove)
        yield


def _changing(
    change: Change, layer: int, tap: str
) -> Callable[[nn.Module, object, Tensor], Tensor]:
    def hook(module: nn.Module, args: object, output: Tensor) -> Tensor:
        changed = change(layer, output)
        if changed.shape != output.shape or changed.dtype != output.dtype:
            raise ValueError(
                f"the change at tap {tap!r} of layer {layer} made {tuple(output.shape)} "
                f"{output.dtype} into {tuple(changed.shape)} {changed.dtype}"
            )
        return changed

    return hook


def constant(value: float) -> Change:
    """Set every entry to `value`: 1 opens a gate that multiplies, 0 shuts it."""
    return lambda layer, tensor: torch.full_like(tensor, value)


def zero_tokens(where: Bool[Tensor, "B T"]) -> Change:
    """Zero the vectors of some tokens: at `v_gated`, what they would give to those who attend."""

    def change(layer: int, tensor: Tensor) -> Tensor:
        mask = where.reshape(*where.shape, *[1] * (tensor.dim() - 2))
        return tensor.masked_fill(mask.to(tensor.device), 0)

    return change


def clamp_channels(channels: Sequence[int], limit: float) -> Change:
    """Keep |h| of some channels within `limit`: at `resid_out`, no massive activation passes."""

    def change(layer: int, tensor: Tensor) -> Tensor:
        index = torch.tensor(list(channels), device=tensor.device)
        clamped = tensor[..., index].clamp(-limit, limit)
        return tensor.index_copy(-1, index, clamped)

    return change
