"""Every tensor's initial value, in one table.

Each parameter draws from a generator of its own, seeded by (seed, parameter name), so that two
models that differ in their gates start with the same weights everywhere else.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from gatelm.nn.gate import Gate, GateProjection
from gatelm.nn.model import Decoder, InitConfig
from gatelm.nn.norm import Norm

WEIGHT_INITS: dict[str, Callable[[int, int, float], float]] = {
    "zeros": lambda fan_in, fan_out, std: 0.0,
    "normal": lambda fan_in, fan_out, std: std,
    "xavier": lambda fan_in, fan_out, std: math.sqrt(2.0 / (fan_in + fan_out)),
    "kaiming": lambda fan_in, fan_out, std: math.sqrt(2.0 / fan_in),
}
"""Standard deviation of a gate's projection by the kind of its `init.weight`."""


@torch.no_grad()
def init_weights(model: Decoder, seed: int) -> None:
    """Set every parameter in place.

    | tensor | start |
    |---|---|
    | embeddings | normal(model.init.embedding_std, else std) |
    | head, q/k/v, up and gate of the FFN | normal(model.init.std) |
    | W_o, W_down | normal(std / sqrt(2 num_layers)), or std with residual_scale none |
    | norm weights | 1 (0 where zero-centred) |
    | gate projections | the gate's own `init.weight`; a low-rank one by its up matrix |
    | gate bias, const | the gate's `init.bias`, else 0 |
    | other biases | 0 |
    """
    std = _std_by_parameter(model)
    for name, parameter in model.named_parameters():
        value = std.get(name)
        if value is not None:
            parameter.copy_(_normal(parameter, value, seed, name))
    for module in model.modules():
        if isinstance(module, Norm):
            module.reset_parameters()
        elif isinstance(module, Gate) and module.bias is not None:
            module.bias.fill_(module.cfg.init.bias or 0.0)
        elif isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()


def _normal(like: Tensor, std: float, seed: int, name: str) -> Tensor:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    sample = torch.empty(like.shape, dtype=torch.float32)
    return sample.normal_(generator=generator).mul_(std).to(like)


def _std_by_parameter(model: Decoder) -> dict[str, float]:
    init: InitConfig = model.cfg.init
    depth = math.sqrt(2.0 * model.cfg.num_layers) if init.residual_scale == "depth" else 1.0
    out: dict[str, float] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            out[f"{name}.weight"] = init.embedding_std or init.std
        elif isinstance(module, nn.Linear):
            writes_residual = name.endswith((".o_proj", ".down_proj"))
            out[f"{name}.weight"] = init.std / depth if writes_residual else init.std
        elif isinstance(module, Gate):
            for input_name, projection in module.proj.items():
                assert isinstance(projection, GateProjection)
                for key, value in _gate_std(module, projection).items():
                    out[f"{name}.proj.{input_name}.{key}"] = value
    return out


def _gate_std(gate: Gate, projection: GateProjection) -> dict[str, float]:
    """A low-rank projection starts with the logits' variance that the full one would have."""
    kind, std = gate.cfg.init.weight, gate.cfg.init.std
    full = WEIGHT_INITS[kind](projection.in_dim, projection.out_dim, std)
    if projection.rank is None:
        return {"weight": full}
    return {
        "down": projection.in_dim**-0.5,
        "up": full * math.sqrt(projection.in_dim / projection.rank),
    }
