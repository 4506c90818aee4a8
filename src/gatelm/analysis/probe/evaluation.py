"""Run a model without leaving a trace in its training state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; afterwards every submodule's own mode is back.

    Nothing is sampled, so random generators are untouched.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
