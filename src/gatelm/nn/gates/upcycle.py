"""Add gates to a trained model so that it still computes what it did.

A gate whose projection starts at zero gives every token the same score s = act(bias). A gate that
multiplies is then undone by dividing the matrix behind it by s: nothing to do for 2 sigmoid
(s = 1), an exact doubling for sigmoid (s = 1/2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gatelm.config import ConfigError
from gatelm.config.base import nearest
from gatelm.config.load import diff
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.block import LayerConfig
from gatelm.nn.gates.gate import ACTIVATIONS, GateConfig, GateInit
from gatelm.nn.gates.presets import GATE_PRESETS
from gatelm.nn.gates.sites import SITES, gate_module
from gatelm.nn.init import normal
from gatelm.nn.model import LayerOverride, ModelConfig

HOW_DOCS: dict[str, str] = {
    "two_sigmoid": "2 sigmoid from zero weights: every score starts at exactly 1",
    "double-out": "sigmoid from zero weights, every score at exactly 0.5, and the matrix behind "
    "doubled: identical outputs in the form that Qwen3.5 loads",
    "open-bias": "sigmoid with a bias of 4 from zero weights, every score at 0.982, and the matrix "
    "behind divided by that: the same outputs but for rounding",
}

OPEN_BIAS = 4.0
"""sigmoid(4) = 0.982; its slope is 0.018, a fourteenth of that at 0."""


def add_gate(
    cfg: ModelConfig,
    state: Mapping[str, Tensor],
    preset: str | GateConfig,
    how: str = "two_sigmoid",
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model with one more gate in every layer, and the state dict under which nothing changes.

    Args:
        state: canonical names; tensors that do not change are passed on, not copied.
        preset: a name of `GATE_PRESETS`, or a gate.
        how: a key of `HOW_DOCS`.

    Raises:
        ConfigError: for a preset that cannot start without changing the outputs, and a site that
            is taken.
    """
    gate = start_gate(preset, how)
    new = with_gate(cfg, gate)
    out = dict(state)
    for index, layer in enumerate(new.layers()):
        like = _matrix(out, f"layers.{index}.attn.o_proj.weight")
        out |= _gate_state(gate, layer, new.hidden_dim, index, like)
    rescale(out, compensation(cfg, new))
    return new, out


def start_gate(preset: str | GateConfig, how: str) -> GateConfig:
    """The gate of a preset with the activation and start that `how` asks for.

    Raises:
        ConfigError: for a preset that is no sigmoid gate, and an unknown `how`.
    """
    if how not in HOW_DOCS:
        raise ConfigError(f"--how {how!r} is not known; {nearest(how, HOW_DOCS)}")
    if isinstance(preset, str) and preset not in GATE_PRESETS:
        raise ConfigError(f"unknown gate preset {preset!r}; {nearest(preset, GATE_PRESETS)}")
    gate = GATE_PRESETS[preset] if isinstance(preset, str) else preset
    name = preset if isinstance(preset, str) else f"the {gate.kind} at {gate.site}"
    allowed = ("sigmoid", "two_sigmoid") if how == "two_sigmoid" else ("sigmoid",)
    if not (isinstance(gate, GateConfig) and _is_plain(gate, allowed)):
        fitting = [n for n, g in GATE_PRESETS.items() if _is_plain(g)]
        raise ConfigError(
            f"{name}: {how} needs a multiplying gate with a plain {' or '.join(allowed)} "
            f"activation; presets that fit: {', '.join(fitting)}"
        )
    activation = "two_sigmoid" if how == "two_sigmoid" else "sigmoid"
    bias = OPEN_BIAS if how == "open-bias" else None
    return gate.replace(activation=activation, init=GateInit(weight="zeros", bias=bias))


def with_gate(cfg: ModelConfig, gate: GateConfig) -> ModelConfig:
    """`cfg` with `gate` after the gates of every layer.

    Raises:
        ConfigError: when its site is taken, or the gate does not fit the layers.
    """
    for index, layer in enumerate(cfg.layers()):
        if any(there.site == gate.site for there in layer.gates):
            raise ConfigError(
                f"layer {index} already has a gate at {gate.site!r}; choose a preset for another "
                "site, or start from the model without it"
            )
    overrides = []
    for override in cfg.layer_overrides:
        values = dict(override.set)
        if "gates" in values:
            values["gates"] = [*values["gates"], gate.tree()]
        overrides.append(LayerOverride(layers=override.layers, set=values))
    layer = cfg.layer.replace(gates=(*cfg.layer.gates, gate))
    tree = {**cfg.tree(), "layer": layer.tree(), "layer_overrides": [o.tree() for o in overrides]}
    return ModelConfig.parse(tree)


def new_gates(old: ModelConfig, new: ModelConfig) -> list[tuple[int, GateConfig]]:
    """(layer, gate) of every gate that `new` has more than `old`.

    How a model starts, its dropout and its attention backend may differ.

    Raises:
        ConfigError: when anything else does, with the path and both values.
    """
    there, here = _core(old), _core(new)
    if new.vocab_size is None:
        here["vocab_size"] = there["vocab_size"]
    for path, one, other in diff(there, here):
        if _same_number(one, other):
            continue
        raise ConfigError(f"{path} is {_shown(one)} in the trained model and {_shown(other)} here")
    added: list[tuple[int, GateConfig]] = []
    for index, (before, after) in enumerate(zip(old.layers(), new.layers(), strict=True)):
        known = {gate.site: gate for gate in before.gates}
        for gate in after.gates:
            match = known.pop(gate.site, None)
            if match is None and isinstance(gate, GateConfig):
                added.append((index, gate))
            elif match is None or _without_init(match) != _without_init(gate):
                raise ConfigError(
                    f"layer {index}: the {gate.kind} at {gate.site!r} is not that of the trained "
                    "model, and only gates can be added"
                )
        for site in known:
            raise ConfigError(
                f"layer {index}: the trained model has a {known[site].kind} at {site!r}, which is "
                "missing here"
            )
    return added


def compensation(old: ModelConfig, new: ModelConfig) -> dict[str, float]:
    """The factor on each weight of `old` with which `new` starts at the same outputs.

    Raises:
        ConfigError: when there is none, with the reason.
    """
    factors: dict[str, float] = {}
    for index, gate in new_gates(old, new):
        layer = new.layers()[index]
        where = f"layer {index}: the new gate at {gate.site!r}"
        score = start_score(gate, where)
        if gate.operation == "add" or score == 1.0:
            continue
        for name in _behind(gate, layer, index, where):
            factors[name] = factors.get(name, 1.0) / score
    return factors


def start_score(gate: GateConfig, where: str = "the gate") -> float:
    """The one score that the gate gives every token at its start.

    Raises:
        ConfigError: when scores differ between tokens, or outputs could not be restored.
    """
    if gate.init.weight != "zeros" and set(gate.inputs) != {"const"}:
        raise ConfigError(
            f"{where} starts with random weights (init.weight: {gate.init.weight}), which changes "
            "the outputs; use init.weight zeros"
        )
    if gate.needs_lse or gate.top_k is not None:
        what = "input lse" if gate.needs_lse else "top_k"
        raise ConfigError(f"{where}: {what} makes its scores differ between tokens from the start")
    score = float(ACTIVATIONS[gate.activation](torch.tensor(gate.init.bias or 0.0)))
    if gate.operation == "add" and score != 0.0:
        raise ConfigError(f"{where} adds {score:g} at its start, not 0; start it from another bias")
    if gate.operation == "mul" and not (math.isfinite(score) and score > 0.0):
        raise ConfigError(
            f"{where} starts at {gate.activation}({gate.init.bias or 0.0:g}) = {score:g}, which "
            "cannot be undone; use an activation that is positive there, or a bias"
        )
    return score


def rescale(state: dict[str, Tensor], factors: Mapping[str, float]) -> None:
    """Multiply tensors of a state dict, which are replaced and not changed in place.

    Raises:
        ConfigError: when a number no longer fits its dtype.
    """
    for name, factor in factors.items():
        scaled = _matrix(state, name).mul(factor)
        if not bool(scaled.isfinite().all()):
            raise ConfigError(
                f"{name}: times {factor:g} it does not fit {scaled.dtype}; convert in float32"
            )
        state[name] = scaled


def _is_plain(gate: Any, activations: tuple[str, ...] = ("sigmoid",)) -> bool:
    """Whether the same score for every token is what a gate with zero weights gives."""
    return (
        isinstance(gate, GateConfig)
        and gate.operation == "mul"
        and gate.activation in activations
        and not gate.needs_lse
        and gate.top_k is None
    )


def _scales(modifier: Any) -> bool:
    """Whether a tensor twice as large comes out twice as large."""
    if not isinstance(modifier, GateConfig):
        return False
    return modifier.operation == "mul" and "y" not in modifier.inputs


def _behind(gate: GateConfig, layer: LayerConfig, index: int, where: str) -> list[str]:
    """The weights of the linear map through which the gated tensor passes next."""
    site = SITES[gate.site]
    if site.folds_into is None:
        raise ConfigError(
            f"{where} acts before the softmax, so no matrix behind it can make up for a score "
            "other than 1; use two_sigmoid"
        )
    if site.owner == "mixer" and gate.site not in layer.mixer.linear_sites:
        raise ConfigError(
            f"{where}: what follows it in a layer with mixer.kind {layer.mixer.kind!r} is not "
            "linear, so no matrix behind it can make up for a score other than 1; use two_sigmoid"
        )
    if gate.site == "v":
        for other in layer.gates:
            if other.site == "sdpa" and not _scales(other):
                raise ConfigError(
                    f"{where}: the {other.kind} at 'sdpa' stands between it and W_o and is not "
                    "linear; use two_sigmoid"
                )
    return [f"layers.{index}.{name}" for name in layer.weights_behind(gate.site)]


def _gate_state(
    gate: GateConfig, layer: LayerConfig, hidden_dim: int, index: int, like: Tensor
) -> dict[str, Tensor]:
    """The gate's parameters at their start. Of a low-rank projection only `up` is zero."""
    module = gate.build(layer.site_shape(gate.site, hidden_dim))
    out: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        full = f"layers.{index}.{gate_module(gate.site)}.{name}"
        if name.endswith(".down"):
            out[full] = normal(parameter, parameter.shape[1] ** -0.5, 0, full).to(like)
        else:
            start = gate.init.bias or 0.0 if name == "bias" else 0.0
            out[full] = like.new_full(parameter.shape, start)
    return out


def _matrix(state: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in state:
        raise ConfigError(f"the weights lack {name}, so they are not those of this config")
    return state[name]


def _core(cfg: ModelConfig) -> dict[str, Any]:
    """What a trained model and one with more gates have in common."""
    tree = cfg.tree()
    for name in ("layer", "layer_overrides", "init"):
        del tree[name]
    layers = []
    for layer in cfg.layers():
        part = layer.replace(gates=(), residual_dropout=0.0).tree()
        if isinstance(layer.mixer, AttentionConfig):
            part["mixer"] = layer.mixer.replace(dropout=0.0, backend="sdpa").tree()
            # two ways to say the same
            part["mixer"]["num_kv_heads"] = layer.mixer.kv_heads
            part["mixer"]["head_dim"] = layer.mixer.width(cfg.hidden_dim)
        layers.append(part)
    return {**tree, "layers": layers}


def _same_number(one: Any, other: Any) -> bool:
    """Equal but for rounding: GGUF holds 1e-5 in fp32."""
    floats = isinstance(one, float) and isinstance(other, float)
    return floats and math.isclose(one, other, rel_tol=1e-6)


def _without_init(gate: Any) -> Any:
    return gate.replace(init=GateInit()) if isinstance(gate, GateConfig) else gate


def _shown(value: Any) -> str:
    return "not set" if value is ... else repr(value)
