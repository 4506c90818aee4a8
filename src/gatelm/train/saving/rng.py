"""Random-number state of python, numpy and torch, as JSON."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_all(seed: int, rank: int = 0) -> None:
    """Seed every global generator; processes draw different numbers."""
    mixed = int(np.random.SeedSequence([seed, rank]).generate_state(1, np.uint64)[0])
    random.seed(mixed)
    np.random.seed(mixed % 2**32)
    torch.manual_seed(mixed)


def rng_state(device: torch.device) -> dict[str, Any]:
    """Return the states of this process's generators, including the device's."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    version, internal, gauss = random.getstate()
    state = {
        "python": [version, list(internal), gauss],
        "numpy": [name, _encode(keys), int(position), int(has_gauss), float(cached)],
        "torch": _encode(torch.get_rng_state().numpy()),
    }
    if device.type == "cuda":
        state["cuda"] = _encode(torch.cuda.get_rng_state(device).numpy())
    return state


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore the generators to `rng_state()`."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, _decode(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(torch.from_numpy(_decode(state["torch"], np.uint8)))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(torch.from_numpy(_decode(state["cuda"], np.uint8)), device)


@contextmanager
def preserved_rng(device: torch.device) -> Iterator[None]:
    """Put the random numbers back after the body, so that training draws what it would have."""
    state = rng_state(device)
    try:
        yield
    finally:
        set_rng_state(state, device)


def _encode(array: Any) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def _decode(text: str, dtype: Any) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=dtype).copy()
