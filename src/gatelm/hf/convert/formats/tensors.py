"""How the tensors of a format map to the state dict of a `Decoder`: tables of names and pieces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from gatelm.config import ConfigError
from gatelm.hf.convert.formats.hybrid import DeltaPacking, delta_pieces, moe_pieces, split_experts
from gatelm.hf.convert.formats.layers import GATE
from gatelm.hf.convert.formats.pieces import Packed, Piece, Same, State
from gatelm.hf.convert.layouts import PackedShape
from gatelm.nn.ffn.config import MoEConfig
from gatelm.nn.mixers.delta import GatedDeltaConfig
from gatelm.nn.model import Decoder, ModelConfig
from gatelm.nn.shapes import Tensor

ATTENTION = {
    "attn.qkv.q": "self_attn.q_proj",
    "attn.qkv.k": "self_attn.k_proj",
    "attn.qkv.v": "self_attn.v_proj",
    "attn.o_proj": "self_attn.o_proj",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
}
MLP = {
    "ffn.gate_proj": "mlp.gate_proj",
    "ffn.up_proj": "mlp.up_proj",
    "ffn.down_proj": "mlp.down_proj",
}


@dataclass(frozen=True)
class Names:
    """Names of a format's modules, by the module of this package.

    root: for modules outside the blocks. layer: for those inside block N, below "model.layers.N.".
    """

    layer: Mapping[str, str]
    root: Mapping[str, str] = field(
        default_factory=lambda: {
            "embedding": "model.embed_tokens",
            "final_norm": "model.norm",
            "head": "lm_head",
        }
    )


LLAMA_NAMES = Names(
    {
        **ATTENTION,
        **MLP,
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
)


def shapes(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the model by name, without allocating any."""
    with torch.device("meta"):
        return {name: tuple(t.shape) for name, t in Decoder(cfg).state_dict().items()}


def pieces(
    cfg: ModelConfig,
    names: Names,
    *,
    layout: str | None = None,
    delta: DeltaPacking | None = None,
    renamed: Callable[[int], Mapping[str, str]] = lambda index: {},
) -> list[Piece]:
    """Return the pieces that map all tensors of a model.

    layout: how q_proj packs the gate; None: the gate is a matrix of its own. delta: how the
    projections of Gated DeltaNet are packed. renamed: modules of one layer that have other names
    there.
    """
    ours = shapes(cfg)
    layers = cfg.layers()
    out: list[Piece] = []
    for index, layer in enumerate(layers):
        if isinstance(layer.mixer, GatedDeltaConfig):
            assert delta is not None
            out += delta_pieces(layer.mixer, cfg.hidden_dim, index, delta)
        if isinstance(layer.ffn, MoEConfig):
            out += moe_pieces(layer.ffn, cfg.hidden_dim, index)
    done = {name for piece in out for name in piece.names}
    for name, shape in ours.items():
        if name in done:
            continue
        module, _, kind = name.rpartition(".")
        match = re.fullmatch(r"layers\.(\d+)\.(.+)", module)
        if match is None:
            out.append(Same(name, f"{names.root[module]}.{kind}", shape))
            continue
        index, module = int(match[1]), match[2]
        table = {**names.layer, **renamed(index)}
        prefix = f"layers.{index}."
        gate = f"{prefix}{GATE}.{kind}"
        if layout is not None and module == GATE:
            continue
        theirs = f"model.{prefix}{table[module]}.{kind}"
        if layout is not None and module == "attn.qkv.q" and gate in ours:
            mixer, rows = layers[index].attention, ours[gate][0]
            packed = PackedShape(
                mixer.num_heads,
                mixer.kv_heads,
                mixer.width(cfg.hidden_dim),
                rows // mixer.num_heads,
            )
            full = (shape[0] + rows, *shape[1:])
            out.append(Packed(name, gate, theirs, layout, packed, full))
        else:
            out.append(Same(name, theirs, shape))
    return out


def to_ours(
    tensors: Mapping[str, Tensor], plan: Iterable[Piece], ignored: Iterable[str], where: str
) -> tuple[State, list[str]]:
    """Turn a format's tensors into our state dict; also returns the names of tensors left out.

    ignored: regular expressions of the names that may be left out.

    Raises:
        ConfigError: for a tensor that is missing, unknown or of another shape, by its name.
    """
    plan, tensors = list(plan), split_experts(tensors)
    expected = {name: shape for piece in plan for name, shape in piece.shapes.items()}
    left_out = [n for n in tensors if n not in expected and _any(ignored, n)]
    unknown = sorted(set(tensors) - set(expected) - set(left_out))
    missing = sorted(set(expected) - set(tensors))
    for names, problem in ((unknown, "not known to this format"), (missing, "missing")):
        if names:
            raise ConfigError(f"{where}: {_listed(names)}: {problem}; nothing is converted")
    for name, shape in expected.items():
        found = tuple(tensors[name].shape)
        if found != shape:
            raise ConfigError(f"{where}: {name}: is {list(found)}, but config.json makes {shape}")
    state: State = {}
    for piece in plan:
        state |= piece.read(tensors, where)
    return state, left_out


def to_theirs(state: Mapping[str, Tensor], plan: Iterable[Piece]) -> State:
    """Turn a state dict of this package into a format's tensors."""
    out: State = {}
    for piece in plan:
        out |= piece.write(state)
    return out


def _any(patterns: Iterable[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "")
