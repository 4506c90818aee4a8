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

from gatelm.nn.ffn.moe import Experts
from gatelm.nn.gates.gate import Gate, GateProjection
from gatelm.nn.mixers.short_conv import ShortConv
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
    | router, experts | as the other matrices: their down_proj is a W_down |
    | norm weights | 1 (0 where zero-centred) |
    | gate projections | the gate's own `init.weight`; a low-rank one by its up matrix |
    | gate bias, const | the gate's `init.bias`, else 0 |
    | short convolutions | uniform(-1/sqrt(K), 1/sqrt(K)) over K tokens, as torch's Conv1d |
    | A_log of recurrent mixers | log uniform(1, 16) (arXiv 2405.21060) |
    | dt_bias of recurrent mixers | the inverse softplus of exp(uniform(log 0.001, log 0.1)) |
    | skip of Mamba-2 | 1 |
    | other biases | 0 |
    """
    std = _std_by_parameter(model)
    for name, parameter in model.named_parameters():
        value, start = std.get(name), STARTS.get(name.rpartition(".")[2])
        if value is not None:
            parameter.copy_(normal(parameter, value, seed, name))
        elif start is not None:
            parameter.copy_(start(_uniform(parameter, seed, name)).to(parameter))
    for name, module in model.named_modules():
        if isinstance(module, Norm):
            module.reset_parameters()
        elif isinstance(module, Gate) and module.bias is not None:
            module.bias.fill_(module.cfg.init.bias or 0.0)
        elif isinstance(module, ShortConv):
            bound = module.kernel_tokens**-0.5
            drawn = _uniform(module.weight, seed, f"{name}.weight")
            module.weight.copy_((2.0 * bound * drawn - bound).to(module.weight))
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()


def _log_rate(u: Tensor) -> Tensor:
    return (1.0 + 15.0 * u).log()


def _step_bias(u: Tensor) -> Tensor:
    step = torch.exp(math.log(0.001) + math.log(100.0) * u)
    return step + torch.log(-torch.expm1(-step))


STARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "A_log": _log_rate,
    "dt_bias": _step_bias,
    "skip": torch.ones_like,
}
"""Initial values by the last part of a parameter's name, from uniform numbers in [0, 1)."""


def normal(like: Tensor, std: float, seed: int, name: str) -> Tensor:
    """Draw normal numbers in the shape of `like`, by the seed and the parameter's name."""
    sample = torch.empty(like.shape, dtype=torch.float32)
    return sample.normal_(generator=_generator(seed, name)).mul_(std).to(like)


def _uniform(like: Tensor, seed: int, name: str) -> Tensor:
    sample = torch.empty(like.shape, dtype=torch.float32)
    return sample.uniform_(generator=_generator(seed, name))


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


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
        elif isinstance(module, Experts):
            for key, _ in module.named_parameters():
                out[f"{name}.{key}"] = init.std / depth if key == "down_proj" else init.std
        elif isinstance(module, Gate):
            for input_name, projection in module.proj.items():
                assert isinstance(projection, GateProjection)
                for key, value in _gate_std(module, projection).items():
                    out[f"{name}.proj.{input_name}.{key}"] = value
    return out


def _gate_std(gate: Gate, projection: GateProjection) -> dict[str, float]:
    """Return a standard deviation that gives a low-rank gate the logits' variance of a full one."""
    kind, std = gate.cfg.init.weight, gate.cfg.init.std
    full = WEIGHT_INITS[kind](projection.in_dim, projection.out_dim, std)
    if projection.rank is None:
        return {"weight": full}
    return {
        "down": projection.in_dim**-0.5,
        "up": full * math.sqrt(projection.in_dim / projection.rank),
    }
