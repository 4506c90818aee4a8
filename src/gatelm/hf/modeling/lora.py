"""The weights that a LoRA of PEFT should adapt, gates included (arXiv 2106.09685)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from gatelm.config import ConfigError
from gatelm.config.base import nearest
from gatelm.nn.block import Block
from gatelm.nn.gates.gate import GateProjection

PARTS = ("attention", "gates", "ffn")


def lora_targets(model: nn.Module, parts: Collection[str] = PARTS) -> dict[str, Any]:
    """Return arguments of `peft.LoraConfig` for every projection of the named parts.

        LoraConfig(r=8, **lora_targets(model))

    parts: "attention" (q, k, v, o, and what another mixer has), "gates", "ffn". A gate's
        projection is no `nn.Linear`, so that PEFT's "all-linear" passes over it: it goes by
        `target_parameters`, for which PEFT has no dropout.

    Raises:
        ConfigError: for an unknown part, or when the model has nothing to adapt.
    """
    for part in parts:
        if part not in PARTS:
            raise ConfigError(f"parts: unknown {part!r}; {nearest(part, PARTS)}")
    modules: list[str] = []
    parameters: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, Block):
            if "attention" in parts:
                modules += _linear(f"{name}.attn", module.attn)
            if "ffn" in parts and module.ffn is not None:
                modules += _linear(f"{name}.ffn", module.ffn)
        elif isinstance(module, GateProjection) and "gates" in parts:
            parameters += [f"{name}.{key}" for key, _ in module.named_parameters()]
    if not modules and not parameters:
        raise ConfigError(f"parts: the model has no projection in {', '.join(parts) or 'nothing'}")
    targets: dict[str, Any] = {"target_modules": modules}
    return {**targets, "target_parameters": parameters} if parameters else targets


def _linear(name: str, module: nn.Module) -> list[str]:
    names = (below for below, child in module.named_modules() if isinstance(child, nn.Linear))
    return [f"{name}.{below}" for below in names]
