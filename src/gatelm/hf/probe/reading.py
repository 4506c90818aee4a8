"""Show an observer one forward of a model of transformers, and apply changes on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from torch import nn
from transformers import PreTrainedModel

from gatelm.analysis.probe.protocol import EMBEDDING, AttentionCall, Change, Observer
from gatelm.hf.probe.attention import NAME, Seen, implementation, showing, window_of
from gatelm.hf.probe.families import SITE, GateReader
from gatelm.hf.probe.rows import DocumentRows
from gatelm.hf.probe.structure import (
    attention_matrix,
    first_tensor,
    input_states,
    output_projection,
    with_first,
    with_input_states,
)
from gatelm.hf.probe.survey import LayerFacts, reason_unreadable
from gatelm.nn.attention.masks import AttentionMask
from gatelm.nn.shapes import Tensor

NO_WINDOW = "its mask is neither causal nor a sliding window"


class HookedModel(Protocol):
    """The attributes of a probe that a reading needs; `HFProbe` has them."""

    model: PreTrainedModel
    blocks: list[nn.Module]
    """Blocks of the decoder."""
    layers: list[LayerFacts]
    """Facts about each layer, in the order of execution."""
    gates: dict[int, GateReader]
    """The readable gates by layer."""
    implementation: str
    """The attention implementation under which the model is read."""

    @property
    def unread(self) -> Mapping[int, str]:
        """The layers whose attention cannot be read, each with the reason."""
        ...

    def lose(self, layer: int, reason: str) -> None:
        """List a layer as unread from now on."""
        ...


class Reading:
    """The hooks of one forward. Layers are counted as they begin."""

    def __init__(
        self,
        probe: HookedModel,
        rows: DocumentRows,
        mask: AttentionMask,
        observer: Observer,
        changes: Mapping[str, Change],
    ):
        self.probe, self.rows, self.mask = probe, rows, mask
        self.observer, self.changes = observer, changes
        self.layer = -1
        self._before: Tensor | None = None
        self._windows: dict[int, tuple[Tensor, int | None]] = {}

    @contextmanager
    def hooked(self, *, watching: bool) -> Iterator[None]:
        """Hook the model for the block; without `watching`, only for the changes."""
        probe, self._watching = self.probe, watching
        with ExitStack() as stack:
            stack.enter_context(implementation(probe.model, probe.implementation))
            for block in dict.fromkeys(probe.blocks):
                hook = block.register_forward_pre_hook(self._enter, with_kwargs=True)
                stack.callback(hook.remove)
                stack.callback(block.register_forward_hook(self._leave).remove)
            for projection in {gate.projection for gate in probe.gates.values()}:
                stack.callback(projection.register_forward_hook(self._gate).remove)
            if watching:
                for attention in {f.attention for f in probe.layers if f.attention is not None}:
                    self._hook_attention(stack, attention)
            if probe.implementation == NAME:
                stack.enter_context(showing(self._shown, self._computed))
            yield

    def _hook_attention(self, stack: ExitStack, attention: nn.Module) -> None:
        if self.probe.implementation != NAME:
            stack.callback(attention.register_forward_hook(self._matrix).remove)
        projection = output_projection(attention)
        if projection is None:
            stack.callback(attention.register_forward_hook(self._branch).remove)
        else:
            stack.callback(projection.register_forward_pre_hook(self._heads).remove)
            stack.callback(projection.register_forward_hook(self._branch).remove)

    def _changed(self, name: str, layer: int, tensor: Tensor) -> Tensor | None:
        """The tensor (in rows) after a change, or None without one."""
        if (change := self.changes.get(name)) is None:
            return None
        old = self.rows.outward(tensor)
        new = change(layer, old)
        if new.shape != old.shape or new.dtype != old.dtype:
            raise ValueError(
                f"the change of {name!r} in layer {layer} made {tuple(old.shape)} {old.dtype} "
                f"into {tuple(new.shape)} {new.dtype}"
            )
        return self.rows.inward(new)

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        self.layer += 1
        self._before = None
        if self.layer:
            return None
        states = input_states(args, kwargs)
        changed = self._changed("residual", EMBEDDING, states)
        states = states if changed is None else changed
        if self._watching:
            self.observer.residual(EMBEDDING, self.rows.outward(states))
        return None if changed is None else with_input_states(args, kwargs, states)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> Any:
        states = first_tensor(output)
        changed = self._changed("residual", self.layer, states)
        if self._watching:
            states = states if changed is None else changed
            self.observer.residual(self.layer, self.rows.outward(states))
        return None if changed is None else with_first(output, changed)

    def _gate(self, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
        gate = self.probe.gates.get(self.layer)
        if gate is None or gate.projection is not module:
            return None
        scores = gate.scores(output)
        changed = self._changed("gate", self.layer, scores)
        if self._watching:
            shown = scores if changed is None else changed
            self.observer.gate(self.layer, SITE, self.rows.outward(shown))
        return None if changed is None else gate.replaced(output, changed)

    def _shown(self, seen: Seen) -> Tensor | None:
        values = None
        if "values" in self.changes:
            changed = self._changed("values", self.layer, seen.v.transpose(1, 2))
            values = None if changed is None else changed.transpose(1, 2)
        if not self._watching or self.layer in self.probe.unread:
            return values
        reason = reason_unreadable(seen)
        window = None if reason or seen.mask is None else self._window(seen.mask)
        if seen.mask is not None and window is None:
            reason = reason or NO_WINDOW
        if reason:
            self.probe.lose(self.layer, reason)
            return values
        q, k, v = (
            self.rows.outward(t.transpose(1, 2))
            for t in (seen.q, seen.k, seen.v if values is None else values)
        )
        call = AttentionCall(
            layer=self.layer,
            q=q,
            k=k,
            v=v,
            mask=self.mask,
            scale=seen.scale,
            window_tokens=None if window is None or window >= seen.k.shape[2] else window,
            softcap=seen.softcap,
            sink_logits=seen.sink_logits,
        )
        self.observer.attention(call)
        return values

    def _window(self, mask: Tensor) -> int | None:
        """The window of a mask; layers share masks, so each is looked at once a forward."""
        key = mask.data_ptr()
        if key not in self._windows:
            self._windows[key] = (mask, window_of(mask))
        return self._windows[key][1]

    def _computed(self, seen: Seen, output: Tensor) -> None:
        if seen.module is self.probe.layers[self.layer].attention:
            self._before = output

    def _matrix(self, module: nn.Module, args: Any, output: Any) -> None:
        if module is not self.probe.layers[self.layer].attention or self.layer in self.probe.unread:
            return
        matrix = attention_matrix(output, self.rows.row_length)
        if matrix is None:
            self.probe.lose(self.layer, "its attention matrix was not seen")
            return
        self.observer.weights(self.layer, self.rows.outward_weights(matrix), self.mask)

    def _heads(self, module: nn.Module, args: Any) -> None:
        facts, merged = self.probe.layers[self.layer], args[0]
        if facts.attention is None or output_projection(facts.attention) is not module:
            return
        before = self._before
        if before is None and facts.shape is not None and self.layer not in self.probe.gates:
            before = merged.unflatten(-1, (facts.shape.num_heads, -1))
        if before is None:
            return
        after = merged.reshape(before.shape) if merged.numel() == before.numel() else before
        self.observer.heads(self.layer, self.rows.outward(before), self.rows.outward(after))
        self._before = None

    def _branch(self, module: nn.Module, args: Any, output: Any) -> None:
        facts = self.probe.layers[self.layer]
        if facts.attention is not None and module in (
            facts.attention,
            output_projection(facts.attention),
        ):
            self.observer.branch(self.layer, self.rows.outward(first_tensor(output)))
