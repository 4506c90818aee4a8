"""How a model rotates q and k by position: measured on the model, not read from its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from gatelm.analysis.probe.handover import Handover
from gatelm.analysis.probe.protocol import AttentionCall
from gatelm.nn.positions.rope import rotate
from gatelm.nn.shapes import Float, Int, Tensor

PROBE_TOKENS = 16
"""Number of test tokens between position 0 and the last position that must be right."""

TOLERANCE = {torch.float64: 5e-3, torch.float32: 5e-3, torch.bfloat16: 5e-2, torch.float16: 2e-2}
"""Largest relative difference between a model's rotation and ours. A wrong pairing or frequency is
off by about 1; angles in float32 by 1e-3 at position 10,000."""


@dataclass(frozen=True, eq=False)
class Rotation:
    """One rotary embedding; without frequencies it rotates nothing."""

    inverse_frequency: Float[Tensor, " R"] | None = None
    pairs: Literal["halves", "neighbours"] = "halves"

    def fits(self, width: int) -> bool:
        """Whether heads of this width have enough channels to turn."""
        return self.inverse_frequency is None or 2 * len(self.inverse_frequency) <= width

    def apply(
        self, x: Float[Tensor, "B T N H"], positions: Int[Tensor, " T"]
    ) -> Float[Tensor, "B T N H"]:
        """Rotate `x`, which stands at position 0, to `positions`."""
        if self.inverse_frequency is None:
            return x
        angles = positions[:, None].to(torch.float32) * self.inverse_frequency.float()
        return rotate(x, angles.cos(), angles.sin(), self.pairs)


def find_rotations(
    model: Handover, tokens: Int[Tensor, " T"], last_position: int
) -> Mapping[int, Rotation]:
    """Each layer's rotation, checked at positions up to `last_position` against the model's own.

    The same tokens run at position 0 and at others; attention gives nothing in this run, so that
    nothing but q and k may differ.

    Raises:
        ValueError: the model has layers without attention, or its positions are no rotation that
            holds for the whole range: learned positions, a scale that grows with position,
            frequencies that change with length, gates of single channels after the rotation.
    """
    sample = tokens[:PROBE_TOKENS].to(model.device)
    spread = torch.linspace(0, last_position, len(sample), device=sample.device).round().long()
    positions = torch.stack((torch.zeros_like(spread), spread))
    frequencies = model.inverse_frequencies()
    candidates = [Rotation()]
    for each in frequencies:
        candidates += [Rotation(each, "halves"), Rotation(each, "neighbours")]
    found: dict[int, Rotation] = {}

    def compare(call: AttentionCall) -> tuple[Tensor, Tensor]:
        found[call.layer] = _matching(call, spread, candidates, model.name, last_position)
        lse = torch.zeros(call.q.shape[:3], device=call.q.device)
        return call.q.new_zeros(*call.q.shape[:3], call.v.shape[-1]), lse

    model.hidden(torch.stack((sample, sample)), positions, compare)
    if len(found) != model.num_layers:
        others = sorted(set(range(model.num_layers)) - set(found))
        raise ValueError(
            f"layers {', '.join(map(str, others))} of {model.name} have no softmax attention that "
            "can be handed over: a window cache says nothing about them"
        )
    return found


def _matching(
    call: AttentionCall,
    spread: Int[Tensor, " T"],
    candidates: list[Rotation],
    name: str,
    last_position: int,
) -> Rotation:
    tolerance = TOLERANCE[call.q.dtype]
    if _difference(call.v[1:], call.v[:1]) > tolerance:
        raise ValueError(
            f"the values in layer {call.layer} of {name} change with position (learned positions, "
            "or a gate on them): keys in its cache cannot be moved"
        )

    def error(rotation: Rotation) -> float:
        q, k = (rotation.apply(t[:1].float(), spread) for t in (call.q, call.k))
        return max(_difference(call.q[1:], q), _difference(call.k[1:], k))

    fitting = [each for each in candidates if each.fits(call.q.shape[-1])]
    best = min(fitting, key=error)
    if error(best) <= tolerance:
        return best
    raise ValueError(
        f"q and k in layer {call.layer} of {name} are not turned by one rotation up to position "
        f"{last_position}: its cache cannot be moved. If its positions change with length, a "
        "smaller window may do"
    )


def _difference(actual: Tensor, expected: Tensor) -> float:
    """Largest distance of two vectors against the mean length of the expected ones."""
    actual, expected = actual.float(), expected.float()
    distance = (actual - expected).norm(dim=-1).max()
    return float(distance / expected.norm(dim=-1).mean().clamp(min=1e-12))
