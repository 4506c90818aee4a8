"""Bring a model into the form that a format has, without a change of what it computes.

Every step is exact: rows are moved or repeated, zeros added, numbers multiplied by a power of two,
or 1 is subtracted from a norm's weight (the one step that may round, and says so). What has no
such form is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from gatelm.config import ConfigError
from gatelm.hf.convert.formats.format import Format
from gatelm.hf.convert.formats.layers import DELTA_GATE, GATE, NATIVE_GATES, SITE
from gatelm.hf.convert.formats.pieces import State
from gatelm.hf.convert.formats.refuse import reasons
from gatelm.nn.attention.config import AttentionConfig
from gatelm.nn.block import LayerConfig
from gatelm.nn.gates.gate import GateConfig
from gatelm.nn.mixers.delta import GatedDeltaConfig
from gatelm.nn.model import InitConfig, ModelConfig
from gatelm.nn.norm import NormConfig
from gatelm.nn.overrides import compress
from gatelm.nn.shapes import Float, Tensor


class RefusedError(ConfigError):
    """A format cannot express a model; `reasons` says why, one sentence each."""

    def __init__(self, fmt: Format, why: list[str]):
        self.reasons = why
        super().__init__(f"{fmt.label} cannot express this model: {'; '.join(why)}")


@dataclass
class Folded:
    """A model in a format's form.

    notes: the steps that led there. rounding: the largest error of a norm's weight.
    """

    cfg: ModelConfig
    state: State
    notes: list[str] = field(default_factory=list)
    rounding: float = 0.0

    def note(self, text: str) -> None:
        """Remember a step, once."""
        if text not in self.notes:
            self.notes.append(text)

    def edit(self, name: str, change: Callable[[Tensor], Tensor]) -> None:
        """Replace a tensor; without weights (planning) there is nothing to do."""
        if self.state:
            self.state[name] = change(self.state[name])


def fold(cfg: ModelConfig, state: State, fmt: Format) -> Folded:
    """Bring a model into the form of `fmt`. state: its weights, which stay as they are; empty to
    plan only.

    Raises:
        RefusedError: when it has no such form.
    """
    if why := reasons(cfg, fmt):
        raise RefusedError(fmt, why)
    out = Folded(cfg, dict(state))
    layers = list(cfg.layers())
    form = gate_form(layers, fmt)
    layers = [_layer(out, layer, index, fmt, form) for index, layer in enumerate(layers)]
    _norms(out, layers, cfg, fmt)
    layers = [_native(layer, cfg.hidden_dim, fmt) for layer in layers]
    layer, overrides = compress(layers)
    head = cfg.head
    if head not in fmt.heads:
        head = "untied"
        out.note("the head is written as a matrix of its own, equal to the embedding")
        if out.state:
            out.state["head.weight"] = out.state["embedding.weight"].clone()
    out.cfg = ModelConfig.parse(
        {
            **cfg.tree(),
            "layer": layer.tree(),
            "layer_overrides": [o.tree() for o in overrides],
            "head": head,
            "final_norm": NormConfig(eps=cfg.final_norm.eps, weight=fmt.norm).tree(),
            "init": InitConfig(std=cfg.init.std, residual_scale="none").tree(),
        }
    )
    return out


def gate_form(layers: list[LayerConfig], fmt: Format) -> str:
    """Return the one form that the gates of all layers take."""
    forms = {_granularity(one) for one in layers if isinstance(one.mixer, AttentionConfig)}
    if forms == {"none"} and "none" in fmt.gates:
        return "none"
    if "element" not in forms and "head" in fmt.gates:
        return "head"
    return "element"


def _granularity(layer: LayerConfig) -> str:
    return layer.gates[0].granularity if layer.gates else "none"  # pyright: ignore[reportAttributeAccessIssue]


def _layer(out: Folded, layer: LayerConfig, index: int, fmt: Format, form: str) -> LayerConfig:
    if not isinstance(layer.mixer, AttentionConfig):
        gate = layer.gates[0]
        if isinstance(gate, GateConfig) and gate.compute_dtype == "input":
            out.note("the SiLU gates are computed in float32 there, in the model's dtype here")
        return layer.replace(gates=(DELTA_GATE,))
    prefix = f"layers.{index}."
    rope = layer.attention.rope
    if rope is not None and rope.pairs == "neighbours":
        order = halves_order(layer, out.cfg.hidden_dim)
        out.note("rotary pairs 2i and 2i+1 moved to i and i + half: rows of q and k reordered")
        for name in rotated_tensors(layer, prefix):
            out.edit(name, lambda t: reorder_heads(t, order))
        mixer = layer.attention.replace(rope=rope.replace(pairs="halves"))
        layer = layer.replace(mixer=mixer)
    if form == "none":
        return layer
    native = NATIVE_GATES[form]
    if not layer.gates:
        out.note(
            "layers without a gate: a gate of zeros, whose score is 1/2 everywhere, and W_o doubled"
        )
        shape = layer.site_shape(SITE, out.cfg.hidden_dim)
        rows = shape.num_heads * shape.logit_width(native)
        if out.state:
            like = out.state[f"{prefix}attn.qkv.q.weight"]
            out.state[f"{prefix}{GATE}.weight"] = like.new_zeros(rows, out.cfg.hidden_dim)
        _double_behind(out, layer, prefix)
        return layer.replace(gates=(native,))
    gate = layer.gates[0]
    assert isinstance(gate, GateConfig)
    _fold_gate(out, gate, layer, prefix, form)
    return layer.replace(gates=(native,))


def _fold_gate(out: Folded, gate: GateConfig, layer: LayerConfig, prefix: str, form: str) -> None:
    name, dim = f"{prefix}{GATE}.weight", out.cfg.hidden_dim
    if gate.activation == "tanh01":
        out.note("(tanh z + 1)/2 as sigmoid 2z: gate rows doubled")
        out.edit(name, _times(2.0))
    if gate.activation == "two_sigmoid":
        out.note("2 sigmoid as sigmoid: W_o doubled")
        _double_behind(out, layer, prefix)
    if gate.input_dim is not None and gate.input_dim < dim:
        missing = dim - gate.input_dim
        out.note("gate inputs past input_dim: columns of zeros")
        out.edit(name, lambda t: torch.cat((t, t.new_zeros(len(t), missing)), dim=1))
    shape = layer.site_shape(SITE, dim)
    scored, width = shape.logit_heads(gate), shape.logit_width(gate)
    repeats = shape.num_heads // scored
    if repeats > 1:
        out.note("scores shared by heads: gate rows repeated for each head")
        out.edit(
            name, lambda t: t.view(scored, width, -1).repeat_interleave(repeats, 0).flatten(0, 1)
        )
    if gate.granularity == "head" and form == "element":
        out.note("a score per head as a score per channel: gate rows repeated")
        out.edit(name, lambda t: t.repeat_interleave(shape.head_dim, dim=0))
    if gate.compute_dtype == "float32":
        out.note("the gate is computed in the model's dtype there, in float32 here")


def _double_behind(out: Folded, layer: LayerConfig, prefix: str) -> None:
    for name in layer.weights_behind(SITE):
        out.edit(f"{prefix}{name}", _times(2.0))


def _norms(out: Folded, layers: list[LayerConfig], cfg: ModelConfig, fmt: Format) -> None:
    """Turn norm weights from y w to y (1 + w), or back."""
    for name, norm, stored in norm_weights(cfg, fmt):
        if norm.weight == stored:
            continue
        sign = -1.0 if stored == "zero_centred" else 1.0
        out.note(f"norm weights: {'1 subtracted' if sign < 0 else '1 added'}")
        if not out.state:
            continue
        before = out.state[name].dtype
        out.state[name], lost = shift(out.state[name], sign)
        if out.state[name].dtype != before:
            out.note("norm weights that would be rounded by it are kept in float32")
        out.rounding = max(out.rounding, lost)


def shift(weight: Tensor, sign: float) -> tuple[Tensor, float]:
    """Return a norm's weight plus `sign`, in float32 if its own dtype would round the result, and
    the largest error of float32."""
    exact = weight.double() + sign
    for dtype in (weight.dtype, torch.float32):
        after = exact.to(dtype)
        lost = float((after.double() - exact).abs().max())
        if not lost:
            break
    return after, lost


def norm_weights(cfg: ModelConfig, fmt: Format) -> list[tuple[str, NormConfig, str]]:
    """List the name of every norm's weight, the norm's config, and the stored form of the weight.

    The output norm of Gated DeltaNet is plain in every format.
    """
    out = [("final_norm.weight", cfg.final_norm, fmt.norm)]
    for index, layer in enumerate(cfg.layers()):
        prefix = f"layers.{index}."
        names = ["attn_norm", "ffn_norm"]
        if layer.norm_placement == "sandwich":
            names += ["attn_post_norm", "ffn_post_norm"]
        out += [(f"{prefix}{name}.weight", layer.norm, fmt.norm) for name in names]
        if isinstance(layer.mixer, GatedDeltaConfig):
            assert layer.mixer.out_norm is not None
            out.append((f"{prefix}attn.out_norm.weight", layer.mixer.out_norm, "plain"))
        elif (qk := layer.attention.qk_norm) is not None:
            out += [(f"{prefix}attn.{n}.weight", qk, fmt.norm) for n in ("q_norm", "k_norm")]
    return out


def _native(layer: LayerConfig, hidden_dim: int, fmt: Format) -> LayerConfig:
    """Return the layer that is read back from the written config."""
    layer = layer.replace(norm=layer.norm.replace(weight=fmt.norm), residual_dropout=0.0)
    if isinstance(layer.mixer, GatedDeltaConfig):
        assert layer.mixer.out_norm is not None
        mixer = layer.mixer.replace(
            num_key_heads=layer.mixer.key_heads,
            head_dim=layer.mixer.key_width(hidden_dim),
            value_dim=layer.mixer.value_width(hidden_dim),
            out_norm=layer.mixer.out_norm.replace(weight="plain"),
            kernel="auto",
        )
        return layer.replace(mixer=mixer)
    mixer = layer.attention.replace(
        num_kv_heads=layer.attention.kv_heads,
        head_dim=layer.attention.width(hidden_dim),
        scale=None,
        backend="sdpa",
    )
    if mixer.qk_norm is not None:
        mixer = mixer.replace(qk_norm=mixer.qk_norm.replace(weight=fmt.norm))
    return layer.replace(mixer=mixer)


def halves_order(layer: LayerConfig, hidden_dim: int) -> Tensor:
    """Return the order of a head's channels that turns neighbouring pairs into pairs of halves."""
    width = layer.attention.width(hidden_dim)
    assert layer.attention.rope is not None
    num_turning = layer.attention.rope.rotary_dim(width)
    first, second = torch.arange(0, num_turning, 2), torch.arange(1, num_turning, 2)
    return torch.cat((first, second, torch.arange(num_turning, width)))


def gather_order(layer: LayerConfig, hidden_dim: int) -> Tensor:
    """Channels of a head that turn in pairs i, i + head_dim/2 ("proportional" rotary positions),
    in the order in which they are the first ones, and pairs of halves of those."""
    width = layer.attention.width(hidden_dim)
    assert layer.attention.rope is not None
    pairs = torch.arange(layer.attention.rope.rotary_dim(width) // 2)
    still = torch.arange(len(pairs), width // 2)
    return torch.cat((pairs, width // 2 + pairs, still, width // 2 + still))


def rotated_tensors(layer: LayerConfig, prefix: str) -> list[str]:
    """Return the names of tensors whose rows are channels that rotary positions turn."""
    names = [f"{prefix}attn.qkv.{n}.weight" for n in "qk"]
    if layer.attention.bias != "none":
        names += [f"{prefix}attn.qkv.{n}.bias" for n in "qk"]
    if layer.attention.qk_norm is not None:
        names += [f"{prefix}attn.{n}.weight" for n in ("q_norm", "k_norm")]
    return names


def reorder_heads(tensor: Float[Tensor, "R *C"], order: Tensor) -> Float[Tensor, "R *C"]:
    """Reorder the rows of every head; order: indices into the channels of one head."""
    return tensor.unflatten(0, (-1, len(order)))[:, order].flatten(0, 1)


def _times(factor: float) -> Callable[[Tensor], Tensor]:
    """Multiply by a power of two, which is exact unless the number leaves the dtype's range."""

    def scaled(tensor: Tensor) -> Tensor:
        out = tensor * factor
        if not torch.equal(out / factor, tensor):
            raise ConfigError(f"weights leave the range of {tensor.dtype} when doubled")
        return out

    return scaled


def unfold(original: ModelConfig, folded: State, fmt: Format) -> State | None:
    """Return the state dict of `original` that `fold` turned into `folded`; None if it did not.

    Checked by folding it again: a folder whose weights were trained on since is not changed back.
    """
    state = dict(folded)
    layers = list(original.layers())
    form = gate_form(layers, fmt)
    if original.head == "tied":
        state.pop("head.weight", None)
    for name, norm, stored in norm_weights(original, fmt):
        if norm.weight != stored:
            sign = 1.0 if stored == "zero_centred" else -1.0
            state[name] = _narrow(shift(state[name], sign)[0], state["embedding.weight"].dtype)
    for index, layer in enumerate(layers):
        if not isinstance(layer.mixer, AttentionConfig):
            continue
        prefix = f"layers.{index}."
        rope = layer.attention.rope
        if rope is not None and rope.pairs == "neighbours":
            back = halves_order(layer, original.hidden_dim).argsort()
            for name in rotated_tensors(layer, prefix):
                state[name] = reorder_heads(state[name], back)
        if form != "none":
            _unfold_gate(state, layer, prefix, form, original.hidden_dim)
    again = fold(original, state, fmt).state
    same = again.keys() == folded.keys() and all(
        again[n].dtype == folded[n].dtype and torch.equal(again[n], folded[n]) for n in folded
    )
    return state if same else None


def _narrow(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast the weight back to the model's dtype, if that rounds nothing."""
    narrow = weight.to(dtype)
    return narrow if torch.equal(narrow.double(), weight.double()) else weight


def _unfold_gate(state: State, layer: LayerConfig, prefix: str, form: str, dim: int) -> None:
    name, behind = f"{prefix}{GATE}.weight", layer.weights_behind(SITE)
    if not layer.gates:
        del state[name]
        _halve(state, prefix, behind)
        return
    gate = layer.gates[0]
    assert isinstance(gate, GateConfig)
    shape = layer.site_shape(SITE, dim)
    heads = state[name].view(shape.num_heads, -1, state[name].shape[-1])
    heads = heads[:: shape.num_heads // shape.logit_heads(gate)]
    if gate.granularity == "head" and form == "element":
        heads = heads[:, :1]
    rows = heads.flatten(0, 1)
    if gate.input_dim is not None:
        rows = rows[:, : gate.input_dim]
    state[name] = (rows / 2.0 if gate.activation == "tanh01" else rows).contiguous()
    if gate.activation == "two_sigmoid":
        _halve(state, prefix, behind)


def _halve(state: State, prefix: str, names: Iterable[str]) -> None:
    for name in names:
        state[f"{prefix}{name}"] = state[f"{prefix}{name}"] / 2.0
