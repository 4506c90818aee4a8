"""Read tensors at named taps while a model runs, without keeping more than the reader wants."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from gatelm.analysis.probe.taps import layer_indices, tap_at
from gatelm.config.base import nearest
from gatelm.nn.gates.sites import BACKEND_TAPS, TAPS

Reader = Callable[[int, Tensor], None]
"""Called with the layer's index and the tensor at the tap."""


@contextmanager
def record(
    model: nn.Module, readers: Mapping[str, Reader], *, layers: Iterable[int] | None = None
) -> Iterator[None]:
    """While the block runs, call `readers[tap](layer, tensor)` whenever a tensor passes a tap.

    The tensor is the one the model goes on with, with its autograd history: a reader must not
    change it. Readers of several taps are called in the order of the forward. Nothing is hooked
    before the block and nothing after it, also when it raises.

    readers: by tap name, `gatelm.nn.gates.sites.TAPS`; shapes are in `SITE_DOCS`.
    layers: which to read, negative ones from the end; None reads all.

    Raises:
        ValueError: for a tap, or layer, that the model does not have.
    """
    chosen = None if layers is None else list(layers)
    with ExitStack() as hooks:
        for tap, reader in readers.items():
            for layer, module in find_taps(model, tap, chosen):
                hooks.callback(module.register_forward_hook(_reading(reader, layer)).remove)
        yield


@contextmanager
def keep(
    model: nn.Module, taps: Iterable[str], *, layers: Iterable[int] | None = None
) -> Iterator[dict[tuple[str, int], Tensor]]:
    """Keep the tensors at `taps`: `kept[tap, layer]` is the latest one, detached.

    Costs the memory of every tensor named; `record` is for statistics.
    """
    kept: dict[tuple[str, int], Tensor] = {}

    def keeper(tap: str) -> Reader:
        return lambda layer, tensor: kept.__setitem__((tap, layer), tensor.detach())

    with record(model, {tap: keeper(tap) for tap in taps}, layers=layers):
        yield kept


def find_taps(
    model: nn.Module, tap: str, layers: Iterable[int] | None = None
) -> list[tuple[int, nn.Module]]:
    """The modules of a tap with their layers.

    Raises:
        ValueError: no such tap or layer, or nothing in the model ever passes this tap.
    """
    if tap not in TAPS:
        raise ValueError(f"unknown tap {tap!r}; {nearest(tap, TAPS)}")
    indices = layer_indices(model, layers)
    found = [(i, module) for i in indices if (module := tap_at(model, i, tap)) is not None]
    if not found:
        hint = (
            "it needs a backend that computes it: nn.attention.use_backend(model, 'eager')"
            if tap in BACKEND_TAPS
            else "there is no gate at that site"
        )
        raise ValueError(f"nothing passes the tap {tap!r} in layers {indices}: {hint}")
    return found


def _reading(reader: Reader, layer: int) -> Callable[[nn.Module, object, Tensor], None]:
    def hook(module: nn.Module, args: object, output: Tensor) -> None:
        reader(layer, output)

    return hook
