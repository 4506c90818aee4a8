"""Models whose sinks are gates: configs and weights, without a gradient step.

out = g (SDPA(q, k, v) - c) + c, which is g SDPA(q, k, v - c) + c, since softmax weights sum to one:
-c is a bias of the value projection, W_o c a bias of the output projection, and what is left is a
head gate after SDPA. The virtual form reads g = sigmoid(lse - scale q.k) from the scores, the gate
form from the layer's normed input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gatelm.nn.block import LayerConfig
from gatelm.nn.gates.gate import GateConfig, GateInit
from gatelm.nn.model import ModelConfig
from gatelm.nn.overrides import with_layers
from gatelm.nn.positions.rope import rotary_angles, rotate
from gatelm.nn.shapes import Float, Tensor
from gatelm.sinks.constants import SinkConstants

VIRTUAL = GateConfig(
    site="sdpa", granularity="head", inputs=("lse", "q_rot"), init=GateInit(weight="zeros")
)
"""The gate that acts as one more key: exact, and it needs the log-sum-exp of the scores."""
FITTED = GateConfig(site="sdpa", granularity="head", init=GateInit(weight="zeros", bias=0.0))
"""The gate of arXiv 2505.06708, one score a head from the normed input, with a bias."""


@dataclass(frozen=True)
class LinearGate:
    """logit = W x + b of every head of one layer."""

    weight: Float[Tensor, "N D"]
    bias: Float[Tensor, "N"]


def rewrite(
    cfg: ModelConfig,
    state: Mapping[str, Tensor],
    constants: Mapping[int, SinkConstants],
    fitted: Mapping[int, LinearGate],
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The model whose layers in `constants` have their sinks as gates.

    Texts begin at position 0: the virtual key is turned back by one position, as if it stood before
    them. Biases and gates have the dtype of the weights.

    Args:
        state: canonical names; tensors that do not change are passed on, not copied.
        fitted: the layers whose gate reads the normed input; the others have the virtual form.
    """
    layers, out = list(cfg.layers()), dict(state)
    for index, sink in constants.items():
        layer = layers[index]
        gate = FITTED if index in fitted else VIRTUAL
        mixer = layer.attention.replace(bias="all")
        layers[index] = layer.replace(mixer=mixer, gates=(*layer.gates, gate))
        out |= _biases(layer, sink, index, cfg.hidden_dim, out)
        like = out[f"layers.{index}.attn.o_proj.weight"]
        prefix = f"layers.{index}.attn.gates.sdpa."
        if index in fitted:
            out[f"{prefix}proj.x.weight"] = fitted[index].weight.to(like)
            out[f"{prefix}bias"] = fitted[index].bias[:, None].to(like)
        else:
            out[f"{prefix}proj.q_rot.weight"] = virtual_weight(layer, sink, cfg.hidden_dim).to(like)
    return with_layers(cfg, layers), out


def virtual_weight(
    layer: LayerConfig, sink: SinkConstants, hidden_dim: int
) -> Float[Tensor, "N H"]:
    """-scale k of each query head, k turned back by one position."""
    mixer = layer.attention
    width = mixer.width(hidden_dim)
    k = sink.k.double()
    if mixer.rope is not None:
        angles = rotary_angles(mixer.rope, width, torch.tensor([-1])).double()
        k = rotate(k[None, None], angles.cos(), angles.sin(), mixer.rope.pairs)[0, 0]
    scale = width**-0.5 if mixer.scale is None else mixer.scale
    return -scale * k.repeat_interleave(mixer.num_heads // mixer.kv_heads, dim=0)


def _biases(
    layer: LayerConfig,
    sink: SinkConstants,
    index: int,
    hidden_dim: int,
    state: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Biases that subtract c from the values and add W_o c, on top of those that there are."""
    mixer, prefix = layer.attention, f"layers.{index}.attn."
    matrix = state[f"{prefix}o_proj.weight"]
    per_head = sink.v.double().repeat_interleave(mixer.num_heads // mixer.kv_heads, dim=0)
    added = {
        "qkv.q.bias": torch.zeros(mixer.num_heads * mixer.width(hidden_dim)),
        "qkv.k.bias": torch.zeros(sink.k.numel()),
        "qkv.v.bias": -sink.v.double().flatten(),
        "o_proj.bias": matrix.double() @ per_head.flatten(),
    }
    out = {}
    for name, value in added.items():
        there = state.get(prefix + name)
        total = value if there is None else there.double() + value
        out[prefix + name] = total.to(matrix)
    return out
