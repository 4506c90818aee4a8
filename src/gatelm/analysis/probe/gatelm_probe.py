"""A model of this package as a probe, through its taps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from gatelm.analysis.probe.evaluation import evaluation
from gatelm.analysis.probe.interventions import intervene
from gatelm.analysis.probe.protocol import (
    CHANGES,
    EMBEDDING,
    AttentionCall,
    Change,
    Observer,
    Probe,
)
from gatelm.analysis.probe.recording import Reader, record
from gatelm.analysis.probe.taps import attention_layers, decoder, gate_sites
from gatelm.config.base import nearest
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.attention.module import Attention
from gatelm.nn.gates.gate import Gate, GateProjection
from gatelm.nn.shapes import Float, Int, Tensor


def as_probe(model: nn.Module | Probe) -> Probe:
    """Return a probe unchanged, and a (compiled or data-parallel) decoder as a `GatelmProbe`.

    Raises:
        ValueError: for a module without a decoder inside.
    """
    return GatelmProbe(model) if isinstance(model, nn.Module) else model


class GatelmProbe:
    """A decoder seen through its taps. Its weights, modes and random numbers stay as they are."""

    family = "gatelm"
    gate_note = None

    def __init__(self, model: nn.Module, name: str = "model"):
        self.name = name
        self.model = decoder(model)
        self.num_layers = len(self.model.layers)
        self.vocab_size: int = self.model.cfg.vocab_size
        self._attention = attention_layers(self.model)
        self.attention_layers = tuple(self._attention)
        self.unread = {
            layer: _why_unread(self.model.layers[layer].attn)
            for layer in range(self.num_layers)
            if layer not in self._attention
        }
        self.gate_sites: dict[int, tuple[str, ...]] = {}
        for layer, site in gate_sites(self.model):
            self.gate_sites[layer] = (*self.gate_sites.get(layer, ()), site)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def device(self) -> torch.device:
        """Device of the decoder."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the decoder."""
        return next(self.model.parameters()).dtype

    def observe(
        self,
        tokens: Int[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
        observer: Observer | None = None,
        **second: Tensor | None,
    ) -> Float[Tensor, "B T D"]:
        """Run the decoder under whatever backend it has; see `Probe.observe`.

        second: `memory` and `memory_mask` of a decoder that reads a second sequence.
        """
        with ExitStack() as stack:
            stack.enter_context(evaluation(self.model))
            if observer is not None:
                mask = AttentionMask(tokens.shape[1], tokens.shape[1], documents, self.device)
                readers = _Readers(self._attention, observer, mask)
                stack.enter_context(record(self.model, readers.common()))
                for tap, reader in readers.by_layer().items():
                    stack.enter_context(
                        record(self.model, {tap: reader}, layers=self.attention_layers)
                    )
                for site in self._sites():
                    stack.enter_context(record(self.model, {f"{site}_gate": readers.gate(site)}))
            return self.model.hidden(tokens, documents=documents, **second)

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return the logits of hidden states."""
        return self.model.logits(hidden)

    @contextmanager
    def intervene(self, changes: Mapping[str, Change]) -> Iterator[None]:
        """Change tensors of every `observe` in the block; see `Probe.intervene`."""
        for name in changes:
            if name not in CHANGES:
                raise ValueError(f"unknown change {name!r}; {nearest(name, CHANGES)}")
        with ExitStack() as stack:
            if gate := changes.get("gate"):
                if not self.gate_sites:
                    raise ValueError("the model has no gate to change")
                taps = {f"{site}_gate": gate for site in self._sites()}
                stack.enter_context(intervene(self.model, taps))
            if values := changes.get("values"):
                stack.enter_context(
                    intervene(self.model, {"v_gated": values}, layers=self.attention_layers)
                )
            if residual := changes.get("residual"):
                stack.enter_context(intervene(self.model, {"resid_out": residual}))
                embedding: Change = lambda layer, h: residual(EMBEDDING, h)  # noqa: E731
                stack.enter_context(intervene(self.model, {"resid_in": embedding}, layers=[0]))
            yield

    def gate_weight_norms(self) -> dict[tuple[int, str], Float[Tensor, " L"]]:
        """Frobenius norm of each scored head's projection rows; gates without one have no entry."""
        norms: dict[tuple[int, str], Tensor] = {}
        for layer, sites in self.gate_sites.items():
            block = self.model.layers[layer]
            for site in sites:
                gate = block.gates[site] if site in block.gates else block.attn.gates[site]
                if len(gate.proj):
                    norms[layer, site] = _weight_norms(gate)
        return norms

    def _sites(self) -> list[str]:
        return list(dict.fromkeys(site for sites in self.gate_sites.values() for site in sites))


def _why_unread(mixer: nn.Module) -> str:
    if isinstance(mixer, Attention):
        return "it attends to a second sequence"
    return "its mixer is no softmax attention"


def _weight_norms(gate: Gate) -> Float[Tensor, " L"]:
    heads = gate.shape.logit_heads(gate.cfg)
    squares = torch.zeros(heads, dtype=torch.float64)
    for projection in gate.proj.values():
        assert isinstance(projection, GateProjection)
        weight = _weight(projection).detach().cpu().double()
        squares += weight.view(heads, -1).square().sum(dim=1)
    return squares.sqrt()


def _weight(projection: GateProjection) -> Float[Tensor, "O I"]:
    if projection.rank is None:
        return projection.weight
    down = projection.down.view(projection.groups, projection.rank, -1)
    up = projection.up.view(projection.groups, -1, projection.rank)
    return (up @ down).flatten(0, 1)


class _Readers:
    """Readers of taps, which call one observer during one forward."""

    def __init__(
        self, layers: Mapping[int, Attention], observer: Observer, mask: AttentionMask
    ) -> None:
        self._layers, self._observer, self._mask = layers, observer, mask
        self._held: dict[str, Tensor] = {}

    def common(self) -> dict[str, Reader]:
        """Readers of the taps that every layer has."""
        return {"resid_in": self._embedding, "resid_out": self._observer.residual}

    def by_layer(self) -> dict[str, Reader]:
        """Readers of the taps of softmax attention."""
        if not self._layers:
            return {}
        return {
            "v_gated": self._hold("v"),
            "q_rot_gated": self._hold("q"),
            "k_rot_gated": self._keys,
            "sdpa": self._hold("heads"),
            "sdpa_gated": self._heads,
            "out": self._observer.branch,
        }

    def gate(self, site: str) -> Reader:
        return lambda layer, scores: self._observer.gate(layer, site, scores)

    def _hold(self, name: str) -> Reader:
        return lambda layer, tensor: self._held.__setitem__(name, tensor)

    def _embedding(self, layer: int, h: Tensor) -> None:
        if layer == 0:
            self._observer.residual(EMBEDDING, h)

    def _keys(self, layer: int, k: Tensor) -> None:
        attention = self._layers[layer]
        call = AttentionCall(
            layer=layer,
            q=self._held.pop("q"),
            k=k,
            v=self._held.pop("v"),
            mask=self._mask,
            scale=attention.scale,
            window_tokens=attention.cfg.window_tokens,
            alibi_slopes=attention.pattern.alibi_slopes,
            pattern=attention.pattern if attention.pattern.needs_positions else None,
        )
        self._observer.attention(call)

    def _heads(self, layer: int, after: Tensor) -> None:
        self._observer.heads(layer, self._held.pop("heads"), after)
