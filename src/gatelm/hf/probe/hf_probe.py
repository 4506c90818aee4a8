"""A probe of any causal language model of transformers, without converting its weights.

Attention is read where the library calls an attention function (q, k, v of every layer, without
weights); a family that computes attention by itself is run with its eager code, whose matrices are
shown and dropped one layer at a time. Which of the two is right is measured, not assumed: when a
probe is made, a short text is run both ways and the results are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from transformers import PreTrainedModel

from gatelm.analysis.probe.evaluation import evaluation
from gatelm.analysis.probe.protocol import CHANGES, Change, Observer
from gatelm.config.base import nearest
from gatelm.hf.probe.families import SITE, GateReader, gate_layout, gate_note
from gatelm.hf.probe.reading import Reading
from gatelm.hf.probe.rows import DocumentRows
from gatelm.hf.probe.structure import body_of, check_length, decoder_blocks
from gatelm.hf.probe.survey import LayerFacts, survey
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.shapes import Float, Int, Tensor


class HFProbe:
    """A `PreTrainedModel` with a language-model head, seen through hooks.

    Layers are numbered in the order in which they run, so a model that runs its layers several
    times shows each pass. Documents are run as rows of their own (see `rows`), so packing and
    padding on either side change nothing. Weights, modes and settings of the model stay as they
    are.
    """

    def __init__(self, model: PreTrainedModel, name: str = "model"):
        self.model, self.name = model, name
        config = model.config.get_text_config()
        self.family: str = config.model_type
        self.blocks = decoder_blocks(model)
        found = survey(model, self.blocks)
        self.implementation = found.implementation
        self.layers: list[LayerFacts] = found.layers
        self.num_layers = len(self.layers)
        self._unread = {
            index: layer.unread for index, layer in enumerate(self.layers) if layer.unread
        }
        self.gate_note = gate_note(config)
        self.gates: dict[int, GateReader] = {}
        if layout := gate_layout(config):
            for index, layer in enumerate(self.layers):
                if layer.attention is not None and layer.shape is not None:
                    where = f"{name}, layer {index}"
                    self.gates[index] = GateReader(layout, layer.attention, layer.shape, where)
        self._changes: dict[str, Change] = {}
        self._logits = found.logits

    @property
    def vocab_size(self) -> int:
        """Number of rows of the vocabulary."""
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def unread(self) -> Mapping[int, str]:
        """The layers whose attention cannot be read, each with the reason."""
        return dict(sorted(self._unread.items()))

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Indices of the layers whose attention can be read."""
        return tuple(index for index in range(self.num_layers) if index not in self._unread)

    @property
    def gate_sites(self) -> Mapping[int, tuple[str, ...]]:
        """Sites of the readable gates by layer."""
        return dict.fromkeys(self.gates, (SITE,))

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return next(p.dtype for p in self.model.parameters() if p.is_floating_point())

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    def observe(
        self,
        tokens: Int[Tensor, "B T"],
        documents: Int[Tensor, "B T"] | None = None,
        observer: Observer | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Run the model and return the states after the final norm; see `Probe.observe`."""
        check_length(self.model, tokens.shape[1])
        rows = DocumentRows(tokens, documents)
        mask = AttentionMask(tokens.shape[1], tokens.shape[1], documents, tokens.device)
        with ExitStack() as stack:
            stack.enter_context(evaluation(self.model))
            reading = Reading(self, rows, mask, observer or Observer(), self._changes)
            stack.enter_context(reading.hooked(watching=observer is not None))
            output = body_of(self.model)(input_ids=rows.inward(tokens), use_cache=False)
        return rows.outward(output[0])

    def logits(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return logits through the model's own head, with its cap or scale."""
        with evaluation(self.model):
            flat = self._logits(hidden.reshape(1, -1, hidden.shape[-1]))
        return flat.view(*hidden.shape[:-1], flat.shape[-1])

    @contextmanager
    def intervene(self, changes: Mapping[str, Change]) -> Iterator[None]:
        """Change tensors of every `observe` in the block; see `Probe.intervene`."""
        for change in changes:
            if change not in CHANGES:
                raise ValueError(f"unknown change {change!r}; {nearest(change, CHANGES)}")
        if "gate" in changes and not self.gates:
            raise ValueError(f"{self.name} ({self.family}) has no gate that can be read")
        if "values" in changes and self.implementation == "eager":
            raise ValueError(f"{self.name} ({self.family}): its values cannot be reached")
        before = self._changes
        self._changes = {**before, **changes}
        try:
            yield
        finally:
            self._changes = before

    def gate_weight_norms(self) -> dict[tuple[int, str], Float[Tensor, "N"]]:
        """Frobenius norm of each head's gate rows, by (layer, site)."""
        return {(layer, SITE): gate.weight_norms() for layer, gate in self.gates.items()}

    def lose(self, layer: int, reason: str) -> None:
        """List a layer as unread from now on."""
        self._unread[layer] = reason
