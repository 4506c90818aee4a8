"""What a rewriting did to a model: loss, largest activations, and sinks at every position."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from gatelm.analysis.loss import target_losses
from gatelm.analysis.probe.evaluation import evaluation
from gatelm.analysis.probe.recording import record
from gatelm.analysis.probe.taps import blocks
from gatelm.nn.model import Decoder
from gatelm.nn.shapes import Float, Int, Tensor

SKIPPED_TOKENS = 32
"""The first tokens of a row have little context: they count neither for the loss nor as queries."""
QUERIES = 64
"""A position counts as a sink by the mean over at least this number of later queries."""
BLOCK = 256
SINK_SHARE = 0.1
"""Mean attention, over heads and later queries, from which a position is called a sink."""


@dataclass(frozen=True)
class Sink:
    """The position of a layer that gets the largest share of later queries' attention."""

    position: int
    share: float


@dataclass
class Effects:
    """What was measured on some rows.

    losses: mean loss of each row, nats a token. first, others: largest size of an entry of the
    residual stream at the first token and at the others. sinks: by layer.
    """

    losses: list[float] = field(default_factory=list)
    first: float = 0.0
    others: float = 0.0
    sinks: dict[int, Sink] = field(default_factory=dict)

    @property
    def strongest(self) -> tuple[int, Sink]:
        """The layer with the strongest sink, and the sink."""
        return max(self.sinks.items(), key=lambda entry: entry[1].share)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        layer, sink = self.strongest
        return {
            "loss": sum(self.losses) / len(self.losses),
            "losses": self.losses,
            "largest_activation_first_token": self.first,
            "largest_activation_other_tokens": self.others,
            "strongest_sink": {"layer": layer, "position": sink.position, "share": sink.share},
            "sink_share_by_layer": {str(n): one.share for n, one in sorted(self.sinks.items())},
        }


@torch.no_grad()
def effects(
    model: Decoder, rows: Int[Tensor, "n T"], layers: Iterable[int], *, front: int = 0
) -> Effects:
    """Measure a model on rows that begin a text; attention in `layers`, in blocks of queries.

    front: number of tokens before the text, such as 1 for BOS. The losses of the same text are of
    the same targets whatever stands before it.
    """
    found, received = Effects(), {layer: torch.zeros(()) for layer in layers}
    queries: dict[int, Tensor] = {}

    def activations(layer: int, h: Float[Tensor, "B T D"]) -> None:
        found.first = max(found.first, float(h[:, 0].abs().max()))
        found.others = max(found.others, float(h[:, 1:].abs().max()))

    def attention(layer: int, k: Float[Tensor, "B T K H"]) -> None:
        if layer in received:
            shares = _received(queries.pop(layer), k, blocks(model)[layer].attn.scale)
            received[layer] = received[layer] + shares / len(rows)

    readers: Mapping[str, Any] = {
        "resid_out": activations,
        "q_rot_gated": queries.__setitem__,
        "k_rot_gated": attention,
    }
    softmax = [i for i in range(len(model.layers)) if i in received]
    with (
        evaluation(model),
        record(model, {"resid_out": activations}),
        record(
            model, {name: readers[name] for name in ("q_rot_gated", "k_rot_gated")}, layers=softmax
        ),
    ):
        for row in rows[:, None]:
            hidden = model.hidden(row)
            losses = target_losses(model, hidden[0, :-1], row[0, 1:])
            found.losses.append(float(losses[SKIPPED_TOKENS + front :].double().mean()))
    for layer, shares in received.items():
        position = int(shares.argmax())
        found.sinks[layer] = Sink(position, float(shares[position]))
    return found


def _received(
    q: Float[Tensor, "1 T N H"], k: Float[Tensor, "1 T K H"], scale: float
) -> Float[Tensor, " S"]:
    """Mean attention that each position gets from later queries, over heads."""
    num = q.shape[1]
    k = k[0].repeat_interleave(q.shape[2] // k.shape[2], dim=1).transpose(0, 1)
    total, count = torch.zeros(num, dtype=torch.float64), torch.zeros(num)
    index = torch.arange(num)
    for start in range(SKIPPED_TOKENS, num, BLOCK):
        block = index[start : start + BLOCK]
        scores = scale * (q[0, block].transpose(0, 1) @ k.transpose(1, 2)).float()
        scores = scores.masked_fill(index[None, :] > block[:, None], float("-inf"))
        later = (index[None, :] < block[:, None] - 1).float()  # not itself, nor the token before
        total += (scores.softmax(dim=-1).mean(dim=0) * later).sum(dim=0).double()
        count += later.sum(dim=0)
    enough = count >= min(QUERIES, num // 2)
    return torch.where(enough, total / count.clamp(min=1), 0.0)
