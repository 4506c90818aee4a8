"""Why a format cannot express a model, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from gatelm.hf.formats.read import ACTIVATIONS
from gatelm.hf.formats.rules import Format
from gatelm.nn.block import LayerConfig
from gatelm.nn.ffn import SwiGLUConfig
from gatelm.nn.gate import GateConfig
from gatelm.nn.model import ModelConfig
from gatelm.nn.norm import NormConfig

FOLDABLE = ("sigmoid", "two_sigmoid", "tanh01")
"""Activations with an exact form as a sigmoid."""


def reasons(cfg: ModelConfig, fmt: Format) -> list[str]:
    """Everything that stands in the way; empty when nothing does."""
    if not fmt.written:
        return ["this format is read, not written"]
    layers = cfg.layers()
    out: list[str] = []
    for why in _all(cfg, layers, fmt):
        if why not in out:
            out.append(why)
    return out


def _all(cfg: ModelConfig, layers: tuple[LayerConfig, ...], fmt: Format) -> Iterator[str]:
    if cfg.position_embedding is not None:
        yield "it has learned positions (position_embedding), the format has none"
    if cfg.head not in fmt.heads and cfg.head == "untied":
        yield "its head is untied, which the format has no place for"
    yield from _gates(layers, fmt)
    yield from _mixers(cfg, layers, fmt)
    yield from _norms(cfg, layers, fmt)
    yield from _ffns(layers)


def _gates(layers: tuple[LayerConfig, ...], fmt: Format) -> Iterator[str]:
    usable = [form for form in fmt.gates if form != "none"]
    for layer in layers:
        for gate in layer.gates:
            where = f"the {gate.kind} at `{gate.site}`"
            if not usable:
                yield f"{where}: the format has no gates"
            elif gate.site != "sdpa" or not isinstance(gate, GateConfig):
                yield f"{where}: the format has a sigmoid gate at `sdpa` only"
            else:
                yield from (f"{where} {why}" for why in _gate(gate))
                if gate.granularity == "element" and "element" not in usable:
                    yield f"{where} has a score per channel, the format one per head"
                elif layer.gates and "element" not in usable and "head" not in usable:
                    yield f"{where}: no form of it"


def _gate(gate: GateConfig) -> Iterator[str]:
    if gate.operation != "mul":
        yield "is added, the format's is multiplied"
    if gate.activation not in FOLDABLE:
        yield f"has activation {gate.activation}, the format's is sigmoid"
    if tuple(gate.inputs) != ("x",):
        yield f"reads {', '.join(gate.inputs)}, the format's the layer's normed input (x) alone"
    if gate.init.bias is not None:
        yield "has a bias, the format's has none"
    if gate.top_k is not None:
        yield "keeps the top k scores, the format's all"
    if gate.sharing == "mean":
        yield "averages scores over heads"
    if gate.rank is not None:
        yield "is low-rank, and the product of its matrices would be rounded"


def _mixers(cfg: ModelConfig, layers: tuple[LayerConfig, ...], fmt: Format) -> Iterator[str]:
    mixers = [layer.attention for layer in layers]
    width = [m.width(cfg.hidden_dim) for m in mixers]
    yield from _one(
        ((m.num_heads, m.kv_heads, w) for m, w in zip(mixers, width, strict=True)), "head counts"
    )
    if any(m.qk_norm is None for m in mixers) and fmt.qk_norm == "required":
        yield "it has no QK-norm (mixer.qk_norm), which the format always applies"
    if any(m.qk_norm is not None for m in mixers) and fmt.qk_norm == "never":
        yield "it has QK-norm (mixer.qk_norm), the format has none"
    yield from _one((m.bias for m in mixers), "biases (mixer.bias)")
    for bias in {m.bias for m in mixers} - set(fmt.biases):
        has = {"none": "it has no biases", "qkv": "q, k and v have biases"}.get(
            bias, "the attention projections have biases"
        )
        yield f"{has} (mixer.bias: {bias}), the format's is {' or '.join(fmt.biases)}"
    if any(m.scale is not None and m.scale != w**-0.5 for m, w in zip(mixers, width, strict=True)):
        yield "mixer.scale is not 1/sqrt(head_dim)"
    yield from _windows([m.window_tokens for m in mixers], fmt)
    for mixer in mixers:
        turns = fmt.rope == "all layers" or mixer.window_tokens is not None
        if turns and mixer.rope is None:
            yield "layers without rotary positions (mixer.rope), which the format always has there"
        if not turns and mixer.rope is not None:
            yield "rotary positions in layers without a window, where the format has none"
    ropes = [m.rope for m in mixers if m.rope is not None]
    yield from _one(
        ((r.base, r.partial_factor, r.scaling) for r in ropes), "rotary positions (mixer.rope)"
    )
    if any(r.partial_factor != 1.0 for r in ropes) and not fmt.partial_rotary:
        yield "partial rotary positions (mixer.rope.partial_factor), the format turns all channels"


def _windows(windows: list[int | None], fmt: Format) -> Iterator[str]:
    given = {w for w in windows if w is not None}
    if given and fmt.windows == "never":
        yield "attention windows (mixer.window_tokens), the format has none"
    if len(given) > 1 or (fmt.windows == "all layers" and len(set(windows)) > 1):
        yield "windows that differ between layers (mixer.window_tokens)"


def _norms(cfg: ModelConfig, layers: tuple[LayerConfig, ...], fmt: Format) -> Iterator[str]:
    norms: list[NormConfig] = [cfg.final_norm, *(layer.norm for layer in layers)]
    norms += [layer.attention.qk_norm for layer in layers if layer.attention.qk_norm is not None]
    if any(n.kind != "rmsnorm" for n in norms):
        yield "it has LayerNorm, the format RMSNorm"
    if any(n.weight == "none" for n in norms):
        yield "it has norms without weights"
    yield from _one((n.eps for n in norms), "norm eps")
    placements = {layer.norm_placement for layer in layers}
    if placements != {"sandwich" if fmt.sandwich else "pre"}:
        yield (
            f"norm_placement is {', '.join(sorted(placements))}, the format's is "
            f"{'sandwich' if fmt.sandwich else 'pre'}"
        )


def _ffns(layers: tuple[LayerConfig, ...]) -> Iterator[str]:
    yield from _one((layer.ffn.tree() for layer in layers), "feed-forward networks (ffn)")
    if any(not isinstance(layer.ffn, SwiGLUConfig) for layer in layers):
        yield "ffn.kind is mlp, the format's is swiglu"
    for activation in {layer.dense_ffn.activation for layer in layers} - set(ACTIVATIONS.values()):
        yield f"ffn.activation {activation} has no name in the format"


def _one(values: Iterable[Any], what: str) -> Iterator[str]:
    found = list(values)
    if any(value != found[0] for value in found):
        yield f"{what} that differ between layers, where the format has one value"
