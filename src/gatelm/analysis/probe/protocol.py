"""The interface of a probe: what a causal language model must show to be analysed.

A *probe* runs one model and shows an *observer* the tensors of every layer as they pass. One
aggregator reads two kinds of probe: models of this package, and models of other libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.attention.pattern import Pattern
from gatelm.nn.shapes import Float, Int, Tensor

EMBEDDING = -1
"""The layer number under which an observer sees the embeddings."""

CHANGES = ("gate", "values", "residual")
"""What an intervention may change."""

Change = Callable[[int, Tensor], Tensor]
"""(layer, tensor) to the tensor that takes its place."""


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """What one layer's softmax sees: q and k after RoPE, norms and score gates; v as it is summed.

    v's heads may be of another width than q's (latent attention). scale: factor on q k^T.
    window_tokens: keys a query sees, itself included; None: all before it. softcap: c of
    c tanh(x / c) on the scaled scores (Gemma 2). sink_logits: one more logit per head in the
    softmax's denominator that carries no value (gpt-oss). alibi_slopes: one a query head, times
    the distance taken from the scores.
    """

    layer: int
    q: Float[Tensor, "B T N H"]
    k: Float[Tensor, "B S K H"]
    v: Float[Tensor, "B S K V"]
    mask: AttentionMask
    scale: float
    window_tokens: int | None = None
    softcap: float | None = None
    sink_logits: Float[Tensor, " N"] | None = None
    alibi_slopes: tuple[float, ...] | None = None
    pattern: Pattern | None = None
    """What the queries see where a window does not say it: blocks, or kept first tokens."""


class Observer:
    """Receives tensors as they pass; a subclass overrides the methods for what it wants to see."""

    def attention(self, call: AttentionCall) -> None:
        """One layer's softmax attention; never for a layer that the probe lists as unread."""

    def weights(self, layer: int, weights: Float[Tensor, "B N T T"], mask: AttentionMask) -> None:
        """A layer's softmax weights, where q and k cannot be read; `attention` is not called then.

        Entries that `mask` hides are 0. The layer is among the probe's `attention_layers`.
        """

    def residual(self, layer: int, h: Float[Tensor, "B T D"]) -> None:
        """`EMBEDDING`: what enters block 0. l: the stream after block l, before any final norm."""

    def gate(self, layer: int, site: str, scores: Float[Tensor, "B T L W"]) -> None:
        """Activated gate scores: L heads (1: shared), W channels (1: one score a head)."""

    def heads(
        self, layer: int, before: Float[Tensor, "B T N H"], after: Float[Tensor, "B T N H"]
    ) -> None:
        """The heads' outputs before and after the gate at `sdpa`; the same tensor without one."""

    def branch(self, layer: int, y: Float[Tensor, "B T D"]) -> None:
        """W_o's output: what the attention branch adds to the residual stream, before any gate or
        norm on it."""


@runtime_checkable
class Probe(Protocol):
    """A causal language model that shows its inside."""

    @property
    def name(self) -> str:
        """Name of the model."""
        ...

    @property
    def family(self) -> str:
        """Name of the model's family."""
        ...

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of rows of the vocabulary."""
        ...

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Indices of the softmax layers whose attention can be read."""
        ...

    @property
    def unread(self) -> Mapping[int, str]:
        """Layers whose attention cannot be read, each with the reason."""
        ...

    @property
    def gate_note(self) -> str | None:
        """What is unknown about the gates; None if all are known."""
        ...

    @property
    def gate_sites(self) -> Mapping[int, tuple[str, ...]]:
        """Sites of the gates by layer; a layer without a gate has no entry."""
        ...

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        ...

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        ...

    def observe(
        self,
        tokens: Int[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
        observer: Observer | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Run the model; return the hidden states after the final norm.

        documents: row-local document ids, -1 = padding (left or right). Tensors that an observer
        sees are the model's own, without gradient: reduce them, do not keep or change them.
        """
        ...

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Logits of any slice of the hidden states, with the model's own softcap or scale."""
        ...

    def intervene(self, changes: Mapping[str, Change]) -> AbstractContextManager[None]:
        """Change tensors of every `observe` while the context is open; observers see the changed.

        "gate": (layer, activated scores); "values": (layer, v before it is summed); "residual":
        (layer, h), `EMBEDDING` included. Raises ValueError for a name not in `CHANGES`, and for
        "gate" when the model has no gate that can be read.
        """
        ...


@runtime_checkable
class GateWeights(Protocol):
    """A probe that knows the weights of its gates has this method too."""

    def gate_weight_norms(self) -> Mapping[tuple[int, str], Float[Tensor, " L"]]:
        """Frobenius norm of the projection rows (no bias) of each scored head, by (layer, site)."""
        ...


@runtime_checkable
class TextTokenizer(Protocol):
    """Tokenizer that turns text into the ids of a probe's model."""

    @property
    def bos_id(self) -> int | None:
        """Id of BOS; None if the vocabulary has none."""
        ...

    @property
    def adds_bos(self) -> bool:
        """Whether texts start with BOS by default, or in a gatelm model's training."""
        ...

    def encode(self, text: str) -> Sequence[int]:
        """Encode a text as ids, without adding any special token."""
        ...

    def display(self, ids: Sequence[int]) -> list[str]:
        """Return one readable string for each id."""
        ...
