"""Hand over the attention of a model of transformers; `hand_over` takes any probe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from gatelm.analysis.probe.evaluation import evaluation
from gatelm.analysis.probe.gatelm_probe import GatelmProbe
from gatelm.analysis.probe.handover import DecoderHandover, Handover, Kernel
from gatelm.analysis.probe.protocol import AttentionCall, Probe
from gatelm.hf.probe.attention import implementation
from gatelm.hf.probe.hf_probe import HFProbe
from gatelm.hf.probe.structure import body_of
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.shapes import Float, Int, Tensor

NAME = "gatelm_handover"

RECURRENT = frozenset(("linear_attention", "mamba", "conv", "hybrid", "recurrent"))
"""Entries of `layer_types` for layers that carry a state."""


def hand_over(probe: Probe) -> Handover:
    """Return the model behind a probe, with its attention ready to be computed by a kernel.

    Raises:
        ValueError: for a model whose cache cannot be moved, with the reason.
    """
    if isinstance(probe, GatelmProbe):
        return DecoderHandover(probe.model, probe.name)
    if isinstance(probe, HFProbe):
        return HFHandover(probe)
    raise ValueError(f"{probe.name}: its attention cannot be handed over")


class HFHandover:
    """Handover of a model of transformers that calls an attention function.

    Raises:
        ValueError: for a layer that attends in chunks, whose mask no cache of this kind has, and
            for one with a state in place of keys.
    """

    def __init__(self, probe: HFProbe):
        self._probe, self.name, self.num_layers = probe, probe.name, probe.num_layers
        config = probe.model.config.get_text_config()
        self._kinds: Sequence[str] | None = getattr(config, "layer_types", None)
        if "chunked_attention" in (self._kinds or ()):
            raise ValueError(
                f"{probe.name} attends in chunks of fixed places in the text, which a window "
                "cache cannot follow"
            )
        if kinds := sorted(set(self._kinds or ()) & RECURRENT):
            raise ValueError(
                f"{probe.name} has layers of type {', '.join(kinds)}, whose state a window cache "
                "does not hold: it needs softmax attention in every layer"
            )

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self._probe.device

    def inverse_frequencies(self) -> Sequence[Float[Tensor, " R"]]:
        """Return the buffers of the rotary modules, one or more per module."""
        return [
            buffer.detach().clone()
            for name, buffer in body_of(self._probe.model).named_buffers()
            if name.endswith("inv_freq") and "original" not in name and buffer.dim() == 1
        ]

    def hidden(
        self, tokens: Int[Tensor, "B T"], positions: Int[Tensor, "B T"], kernel: Kernel
    ) -> Float[Tensor, "B T D"]:
        """See `Handover.hidden`."""
        model = self._probe.model
        with evaluation(model), implementation(model, NAME), self._handed_over(kernel):
            return body_of(model)(input_ids=tokens, position_ids=positions, use_cache=False)[0]

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return the logits of some states."""
        return self._probe.logits(hidden)

    @contextmanager
    def _handed_over(self, kernel: Kernel) -> Iterator[None]:
        """Compute attention by `kernel` in the block; layers are counted as they begin."""
        layer = -1

        def begin(module: nn.Module, args: Any) -> None:
            nonlocal layer
            layer += 1

        def attend(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, options: Any) -> Tensor:
            mask = AttentionMask(q.shape[2], k.shape[2], device=q.device)
            scale = options.get("scaling")
            call = AttentionCall(
                layer=layer,
                q=q.transpose(1, 2),
                k=k.transpose(1, 2),
                v=v.transpose(1, 2),
                mask=mask,
                scale=q.shape[-1] ** -0.5 if scale is None else float(scale),
                window_tokens=self._window_of(layer, options),
                softcap=options.get("softcap"),
                sink_logits=options.get("s_aux"),
            )
            return kernel(call)[0].contiguous()

        with ExitStack() as stack:
            for block in dict.fromkeys(self._probe.blocks):
                stack.callback(block.register_forward_pre_hook(begin).remove)
            _kernels.append(attend)
            stack.callback(_kernels.pop)
            yield

    def _window_of(self, layer: int, options: Any) -> int | None:
        """Return the window of the layer's call in tokens; None for all keys before the query."""
        window = options.get("sliding_window")
        kind = self._kinds[layer] if self._kinds and layer < len(self._kinds) else None
        if window is None and kind == "sliding_attention":
            raise ValueError(f"layer {layer} of {self.name} has a window that it does not show")
        return window


_kernels: list[Any] = []


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature: heads (B,N,T,H) in, (B,T,N,H) out, no weights."""
    return _kernels[-1](module, query, key, value, options), None


def _no_mask(*args: Any, **options: Any) -> None:
    return None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _no_mask)
