"""Run a model while a function of the caller computes the attention of every layer.

Rotary models know a token's place from the rotation of q and k alone. With every token at position
0 the rotation is the identity, so that the caller gets q and k as they were before it, and may
place them where it likes: this is how a cache is streamed (`gatelm.inference.streaming`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import nn

from gatelm.analysis.probe.evaluation import evaluation
from gatelm.analysis.probe.protocol import AttentionCall
from gatelm.analysis.probe.taps import attention_layers, blocks, decoder
from gatelm.nn.attention.backends import AttentionOutput, Capabilities
from gatelm.nn.attention.backends.base import Observe
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.attention.pattern import Pattern
from gatelm.nn.forward_state import Context
from gatelm.nn.positions.rope import rotary_angles
from gatelm.nn.shapes import Float, Int, Tensor

Kernel = Callable[[AttentionCall], tuple[Tensor, Tensor]]
"""From q, k, v and the scores' settings to the heads' outputs (B,T,N,H) and the log-sum-exp of the
scaled scores (B,T,N). The call's mask is not to be used: the kernel decides who sees whom."""


@runtime_checkable
class Handover(Protocol):
    """A model whose attention can be handed over."""

    @property
    def name(self) -> str:
        """Name of the model."""
        ...

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        ...

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        ...

    def inverse_frequencies(self) -> Sequence[Float[Tensor, " R"]]:
        """Inverse frequencies of every rotary embedding in the model."""
        ...

    def hidden(
        self, tokens: Int[Tensor, "B T"], positions: Int[Tensor, "B T"], kernel: Kernel
    ) -> Float[Tensor, "B T D"]:
        """Final normed states without gradient: tokens at `positions`, attention by `kernel`."""
        ...

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return the logits of final states."""
        ...


class DecoderHandover:
    """A decoder of this package.

    Raises:
        ValueError: for a model with learned positions, which are part of its residual stream, and
            for one with layers that are no softmax attention, whose state nothing would hold.
    """

    def __init__(self, model: nn.Module, name: str = "the model"):
        self.name = name
        self._model = decoder(model)
        self.num_layers = len(blocks(self._model))
        if self._model.positions is not None:
            raise ValueError(
                f"{name} adds learned positions to its embedding, so keys in its cache cannot be "
                "moved: a window cache needs rotary positions or none"
            )
        if any(a.pattern.needs_positions for a in attention_layers(self._model).values()):
            raise ValueError(
                f"{name} has layers that see blocks, or first tokens past a window of their own "
                "(mixer.sparsity, mixer.first_tokens), which a window cache does not hold"
            )
        if any(a.pattern.alibi_slopes for a in attention_layers(self._model).values()):
            raise ValueError(
                f"{name} takes distance off its scores (mixer.position_bias), which a window cache "
                "does not do: it needs rotary positions or none"
            )
        if len(attention_layers(self._model)) < self.num_layers:
            raise ValueError(
                f"{name} has layers with a state in place of keys, which a window cache does not "
                "hold: it needs softmax attention in every layer"
            )

    @property
    def device(self) -> torch.device:
        """Device of the decoder."""
        return next(self._model.parameters()).device

    def inverse_frequencies(self) -> Sequence[Float[Tensor, " R"]]:
        """Inverse frequencies of each kind of rotary embedding in the decoder."""
        one = torch.ones(1, dtype=torch.long, device=self.device)
        ropes = {
            (attn.cfg.rope, attn.qkv.head_dim)
            for attn in attention_layers(self._model).values()
            if attn.cfg.rope is not None
        }
        return [rotary_angles(rope, width, one)[0] for rope, width in ropes]

    def hidden(
        self, tokens: Int[Tensor, "B T"], positions: Int[Tensor, "B T"], kernel: Kernel
    ) -> Float[Tensor, "B T D"]:
        """See `Handover.hidden`."""
        with evaluation(self._model), self._handed_over(positions, kernel):
            return self._model.hidden(tokens)

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return the logits of some states."""
        with torch.no_grad():
            return self._model.logits(hidden)

    @contextmanager
    def _handed_over(self, positions: Int[Tensor, "B T"], kernel: Kernel) -> Iterator[None]:
        """Replace backends and positions for the block, and put the model's own back afterwards."""
        layers = attention_layers(self._model)
        own = {layer: attn.backend for layer, attn in layers.items()}
        shared: list[Context] = []

        def place(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            if not shared:
                shared.append(Context(args[1].mask, positions))
            return (args[0], shared[0])

        hooks = [block.register_forward_pre_hook(place) for block in blocks(self._model)]
        for layer, attn in layers.items():
            attn.backend = _KernelBackend(layer, kernel)
        try:
            yield
        finally:
            for layer, attn in layers.items():
                attn.backend = own[layer]
            for hook in hooks:
                hook.remove()


class _KernelBackend:
    """Attention backend that calls a kernel in the place of one layer's backend."""

    capabilities = Capabilities(lse=True, probs=False, dropout=False)

    def __init__(self, layer: int, kernel: Kernel):
        self._layer, self._kernel = layer, kernel

    def __call__(
        self,
        q: Float[Tensor, "B T N H"],
        k: Float[Tensor, "B S K H"],
        v: Float[Tensor, "B S K V"],
        *,
        mask: AttentionMask,
        pattern: Pattern,
        scale: float,
        dropout: float,
        observe: Observe,
        lse: Literal["skip", "return"] = "skip",
    ) -> AttentionOutput:
        call = AttentionCall(self._layer, q, k, v, mask, scale, pattern.window_tokens)
        return AttentionOutput(*self._kernel(call))
