"""Reasons, in sentences, why a format cannot express a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeGuard

from gatelm.hf.convert.formats.format import Format
from gatelm.hf.convert.formats.layers import ACTIVATIONS, DELTA_GATE, SITE
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.block import LayerConfig
from gatelm.nn.ffn.config import MoEConfig, SwiGLUConfig
from gatelm.nn.gates.gate import GateConfig, GateInit
from gatelm.nn.mixers.delta import GatedDeltaConfig
from gatelm.nn.model import ModelConfig
from gatelm.nn.norm import NormConfig

EXPRESSED = (
    *("kind", "num_heads", "num_kv_heads", "head_dim", "qk_norm", "rope", "window_tokens"),
    *("bias", "scale", "dropout", "backend"),
)
"""Settings of attention that formats have a word for; all others must be at their defaults."""

FOLDABLE = ("sigmoid", "two_sigmoid", "tanh01")
"""Activations of a gate that can be written exactly as a sigmoid."""


def reasons(cfg: ModelConfig, fmt: Format) -> list[str]:
    """Say why a format cannot express a model, one sentence a reason; empty where it can."""
    if not fmt.written:
        return ["this format is read, not written"]
    layers = cfg.layers()
    return list(dict.fromkeys([*_kinds(layers, fmt)] or _all(cfg, layers, fmt)))


def _kinds(layers: tuple[LayerConfig, ...], fmt: Format) -> Iterator[str]:
    """Yield the parts of a kind that the format lacks, of which nothing else can be said."""
    for layer in layers:
        kind = layer.mixer.kind
        if not isinstance(layer.mixer, AttentionConfig | GatedDeltaConfig) or (
            isinstance(layer.mixer, GatedDeltaConfig) and fmt.delta is None
        ):
            yield f"layers with mixer.kind {kind}, which the format has not"
        if not isinstance(layer.ffn, SwiGLUConfig | MoEConfig):
            yield f"ffn.kind is {layer.ffn.kind}, the format's is swiglu"
        if isinstance(layer.ffn, MoEConfig) and fmt.experts == "never":
            yield "mixtures of experts (ffn.kind moe), which the format has not"
    if not any(isinstance(layer.mixer, AttentionConfig) for layer in layers):
        yield "no layer of softmax attention, which the format's config describes"


def _all(cfg: ModelConfig, layers: tuple[LayerConfig, ...], fmt: Format) -> Iterator[str]:
    if cfg.position_embedding is not None:
        yield "it has learned positions (position_embedding), the format has none"
    if cfg.head not in fmt.heads and cfg.head == "untied":
        yield "its head is untied, which the format has no place for"
    softmax = tuple(layer for layer in layers if isinstance(layer.mixer, AttentionConfig))
    yield from _gates(softmax, fmt)
    yield from _mixers(cfg, softmax, fmt)
    yield from _delta(tuple(layer for layer in layers if layer not in softmax), cfg.hidden_dim)
    yield from _norms(cfg, layers, fmt)
    yield from _ffns(layers, fmt)


def _gates(layers: tuple[LayerConfig, ...], fmt: Format) -> Iterator[str]:
    usable = [form for form in fmt.gates if form != "none"]
    for layer in layers:
        for gate in layer.gates:
            where = f"the {gate.kind} at `{gate.site}`"
            if not usable:
                yield f"{where}: the format has no gates"
            elif gate.site != SITE or not isinstance(gate, GateConfig):
                yield f"{where}: the format has a sigmoid gate at `{SITE}` only"
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
    for name, value in ((n, getattr(m, n)) for m in mixers for n in type(m).model_fields):
        if name not in EXPRESSED and value != AttentionConfig.model_fields[name].default:
            yield f"mixer.{name} is set, which the format has not"
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
    if any(m.position_bias is not None for m in mixers):
        yield "a bias for distance (mixer.position_bias), the format has none"
    ropes = [m.rope for m in mixers if m.rope is not None]
    yield from _one(
        ((r.base, r.partial_factor, r.scaling) for r in ropes), "rotary positions (mixer.rope)"
    )
    if any(r.partial_factor != 1.0 for r in ropes) and not fmt.partial_rotary:
        yield "partial rotary positions (mixer.rope.partial_factor), the format turns all channels"


def _delta(layers: tuple[LayerConfig, ...], hidden_dim: int) -> Iterator[str]:
    mixers = [layer.mixer for layer in layers if isinstance(layer.mixer, GatedDeltaConfig)]
    yield from _one(
        ((m.num_heads, m.key_heads, m.channels(hidden_dim), m.conv_tokens) for m in mixers),
        "Gated DeltaNet layers",
    )
    if any(m.out_norm is None for m in mixers):
        yield "Gated DeltaNet without an output norm (mixer.out_norm), which the format has"
    for layer in layers:
        gates = [gate.replace(compute_dtype="float32") for gate in layer.gates if _is_gate(gate)]
        starts = [gate.replace(init=GateInit()) for gate in gates if gate.init.bias is None]
        if len(layer.gates) != 1 or starts != [DELTA_GATE]:
            yield "Gated DeltaNet with gates other than sdpa-silu-gate, which the format has there"


def _is_gate(gate: object) -> TypeGuard[GateConfig]:
    return isinstance(gate, GateConfig)


def _windows(windows: list[int | None], fmt: Format) -> Iterator[str]:
    given = {w for w in windows if w is not None}
    if given and fmt.windows == "never":
        yield "attention windows (mixer.window_tokens), the format has none"
    if len(given) > 1 or (fmt.windows == "all layers" and len(set(windows)) > 1):
        yield "windows that differ between layers (mixer.window_tokens)"


def _norms(cfg: ModelConfig, layers: tuple[LayerConfig, ...], fmt: Format) -> Iterator[str]:
    norms: list[NormConfig] = [cfg.final_norm, *(layer.norm for layer in layers)]
    for layer in layers:
        mixer = layer.mixer
        own = mixer.out_norm if isinstance(mixer, GatedDeltaConfig) else layer.attention.qk_norm
        norms += [own] if own is not None else []
    if any(n.kind != "rmsnorm" for n in norms):
        yield "it has LayerNorm, the format RMSNorm"
    if any(n.weight == "none" for n in norms):
        yield "it has norms without weights"
    if any(n.gate is not None or n.pre_affine != "none" for n in norms):
        yield "its norms have a gate or a factor before them (norm.gate, norm.pre_affine)"
    yield from _one((n.eps for n in norms), "norm eps")
    placements = {layer.norm_placement for layer in layers}
    if placements != {"sandwich" if fmt.sandwich else "pre"}:
        yield (
            f"norm_placement is {', '.join(sorted(placements))}, the format's is "
            f"{'sandwich' if fmt.sandwich else 'pre'}"
        )


def _ffns(layers: tuple[LayerConfig, ...], fmt: Format) -> Iterator[str]:
    dense = [layer.ffn for layer in layers if isinstance(layer.ffn, SwiGLUConfig)]
    mixed = [layer.ffn for layer in layers if isinstance(layer.ffn, MoEConfig)]
    yield from _one((ffn.tree() for ffn in dense), "feed-forward networks (ffn)")
    yield from _one((ffn.tree() for ffn in mixed), "mixtures of experts (ffn)")
    yield from _one((ffn.activation for ffn in (*dense, *mixed)), "activations (ffn.activation)")
    for activation in {ffn.activation for ffn in (*dense, *mixed)} - set(ACTIVATIONS.values()):
        yield f"ffn.activation {activation} has no name in the format"
    if dense and fmt.experts == "all layers":
        yield "layers without experts, where the format has a mixture in every layer"
    if not mixed and fmt.experts == "any layer" and fmt.shared_expert == "never":
        yield "it has no experts, for which the format is"
    for ffn in mixed:
        if (ffn.shared is None) == (fmt.shared_expert == "required"):
            has = "no shared expert" if ffn.shared is None else "a shared expert"
            yield f"mixtures with {has} (ffn.shared), the format's is {fmt.shared_expert}"
        if ffn.shared is not None and ffn.shared.gate != "sigmoid":
            yield "a shared expert without its gate (ffn.shared.gate), which the format has"
        if ffn.num_experts == 1 and fmt.one_expert == "dense":
            yield "a mixture of one expert, by which the format's readers mean a dense network"
        if ffn.weights != "normalised" and fmt.experts == "all layers":
            yield "weights of experts that do not sum to 1 (ffn.weights), where the format's do"


def _one(values: Iterable[Any], what: str) -> Iterator[str]:
    found = list(values)
    if any(value != found[0] for value in found):
        yield f"{what} that differ between layers, where the format has one value"
