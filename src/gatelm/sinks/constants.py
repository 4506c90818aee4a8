"""What a sink is made of: the key and the value of the first token, which hardly vary.

With a_0 the attention of a query to key 0, out = (1 - a_0) SDPA(without key 0) + a_0 v_0, so that
1 - a_0 = sigmoid(lse - scale q.k_0) is a gate, lse being that of the other keys (arXiv 2602.01203).
Where k_0 and v_0 depend little on the text, their means k and c stand for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from gatelm.analysis.probe.evaluation import evaluation
from gatelm.analysis.probe.recording import record
from gatelm.config import ConfigError
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.block import LayerConfig
from gatelm.nn.model import Decoder
from gatelm.nn.shapes import Float, Int, Tensor


@dataclass(frozen=True)
class SinkConstants:
    """The mean key and value of the first token of one layer.

    k: after QK-norm, at position 0, where rotary positions turn nothing. spread: root of the mean
    squared distance from the means over texts, as a share of the means' size.
    """

    k: Float[Tensor, "K H"]
    v: Float[Tensor, "K V"]
    k_spread: float
    v_spread: float


def check_layer(layer: LayerConfig, index: int) -> str | None:
    """Why a layer's sink cannot become a gate; None when it can.

    A layer without softmax attention, or with a window (which leaves the first token behind), is
    left as it is.

    Raises:
        ConfigError: for a layer whose sink cannot be rewritten although it has one.
    """
    mixer = layer.mixer
    if not isinstance(mixer, AttentionConfig):
        return f"its mixer is {mixer.kind}"
    if mixer.window_tokens is not None or mixer.sparsity is not None:
        return "its window leaves the first token behind"
    where = f"layer {index}"
    if mixer.position_bias is not None:
        raise ConfigError(f"{where}: with position_bias a sink's score depends on the distance")
    if mixer.rope is not None and mixer.rope.length_dependent:
        raise ConfigError(f"{where}: its rotary positions depend on the length of the text")
    if mixer.projection is not None or mixer.memory is not None:
        raise ConfigError(f"{where}: latent and cross attention are not rewritten")
    taken = [gate.site for gate in layer.gates if gate.site in ("k", "k_rot", "v", "sdpa")]
    if taken:
        raise ConfigError(
            f"{where}: has something at {taken[0]!r} already; start from a model without"
        )
    return None


def sink_layers(model: Decoder) -> tuple[int, ...]:
    """The layers whose sinks can become gates.

    Raises:
        ConfigError: see `check_layer`; also when there are none.
    """
    layers = enumerate(model.cfg.layers())
    found = tuple(index for index, layer in layers if check_layer(layer, index) is None)
    if not found:
        raise ConfigError("the model has no layer of full softmax attention, so it has no sinks")
    return found


class _Moments:
    """Sum, sum of squares and number of some vectors, in float64."""

    def __init__(self) -> None:
        self.count, self.sum, self.squares = 0, torch.zeros(()), torch.zeros(())

    def add(self, rows: Float[Tensor, "B K H"]) -> None:
        rows = rows.double()
        self.count += len(rows)
        self.sum = self.sum + rows.sum(dim=0)
        self.squares = self.squares + rows.square().sum(dim=0)

    @property
    def mean(self) -> Float[Tensor, "K H"]:
        return self.sum / self.count

    @property
    def spread(self) -> float:
        variance = (self.squares / self.count - self.mean.square()).clamp(min=0).sum()
        return float((variance / self.mean.square().sum()).sqrt())


@torch.no_grad()
def sink_constants(
    model: Decoder, batches: Iterable[Int[Tensor, "B T"]], layers: Iterable[int]
) -> dict[int, SinkConstants]:
    """The constants of `layers`, from rows that all begin a text. Memory is one batch's."""
    keys = {layer: _Moments() for layer in layers}
    values = {layer: _Moments() for layer in keys}
    readers = {
        "k_rot_gated": lambda layer, k: keys[layer].add(k[:, 0]),
        "v_gated": lambda layer, v: values[layer].add(v[:, 0]),
    }
    with evaluation(model), record(model, readers, layers=list(keys)):
        for tokens in batches:
            model.hidden(tokens)
    return {
        layer: SinkConstants(
            keys[layer].mean, values[layer].mean, keys[layer].spread, values[layer].spread
        )
        for layer in keys
    }
