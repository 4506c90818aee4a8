"""Tensors of Gated DeltaNet and of mixtures of experts in Qwen's formats.

| ours | Qwen3-Next (`grouped`) | Qwen3.5 (`apart`) |
|---|---|---|
| q_proj, k_proj, v_proj, gate | in_proj_qkvz: for each head of keys, its rows of the four | \
in_proj_qkv: q, k and v; in_proj_z: the gate |
| beta_proj, decay_proj | in_proj_ba: for each head of keys, its rows of the two | in_proj_b, \
in_proj_a |
| conv (C,K) | conv1d (C,1,K) | conv1d (C,1,K) |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import torch

from gatelm.hf.convert.formats.layers import GATE
from gatelm.hf.convert.formats.pieces import ExpertMatrices, Piece, Same, StackedRows, State
from gatelm.nn.ffn.moe import MoEConfig
from gatelm.nn.mixers.delta import GatedDeltaConfig
from gatelm.nn.shapes import Int, Tensor

DeltaPacking = Literal["grouped", "apart"]


def delta_pieces(
    mixer: GatedDeltaConfig, hidden_dim: int, index: int, packing: DeltaPacking
) -> list[Piece]:
    """Return the map of one layer's mixer, including its SiLU gate."""
    ours, theirs = f"layers.{index}.attn.", f"model.layers.{index}.linear_attn."
    queries, keys, values = mixer.channels(hidden_dim)
    heads, width = mixer.num_heads, mixer.value_width(hidden_dim)
    q, k, v = (
        (f"{ours}{letter}_proj.weight", rows)
        for letter, rows in (("q", queries), ("k", keys), ("v", values))
    )
    gate = (f"layers.{index}.{GATE}.weight", values)
    beta, decay = ((f"{ours}{name}_proj.weight", heads) for name in ("beta", "decay"))

    def rows(name: str, *parts: tuple[str, int]) -> StackedRows:
        counts = tuple(count for _, count in parts)
        groups = mixer.key_heads if packing == "grouped" else 1
        order, total = _grouped(counts, groups), sum(counts)
        names = tuple(part for part, _ in parts)
        return StackedRows(names, counts, order, f"{theirs}{name}.weight", (total, hidden_dim))

    if packing == "grouped":
        projections = [rows("in_proj_qkvz", q, k, v, gate), rows("in_proj_ba", beta, decay)]
    else:
        projections = [
            rows("in_proj_qkv", q, k, v),
            *(
                Same(part, f"{theirs}in_proj_{letter}.weight", (count, hidden_dim))
                for letter, (part, count) in (("z", gate), ("b", beta), ("a", decay))
            ),
        ]
    channels = queries + keys + values
    conv = StackedRows(
        (f"{ours}conv.weight",),
        (channels,),
        torch.arange(channels),
        f"{theirs}conv1d.weight",
        (channels, 1, mixer.conv_tokens),
    )
    return [
        *projections,
        conv,
        *(Same(f"{ours}{name}", f"{theirs}{name}", (heads,)) for name in ("dt_bias", "A_log")),
        Same(f"{ours}out_norm.weight", f"{theirs}norm.weight", (width,)),
        Same(f"{ours}o_proj.weight", f"{theirs}out_proj.weight", (hidden_dim, values)),
    ]


def _grouped(counts: tuple[int, ...], groups: int) -> Int[Tensor, "R"]:
    """Order rows by group: each group's share of every part."""
    begins = [sum(counts[:i]) for i in range(len(counts))]
    parts = [
        (begin + torch.arange(count)).view(groups, -1)
        for begin, count in zip(begins, counts, strict=True)
    ]
    return torch.cat(parts, dim=1).flatten()


def moe_pieces(ffn: MoEConfig, hidden_dim: int, index: int) -> list[Piece]:
    """Return the map of one layer's mixture of experts."""
    ours, theirs = f"layers.{index}.ffn.", f"model.layers.{index}.mlp."
    inner, outer = (ffn.ffn_dim, hidden_dim), (hidden_dim, ffn.ffn_dim)
    shapes = {"gate_proj": inner, "up_proj": inner, "down_proj": outer}
    out: list[Piece] = [
        Same(f"{ours}router.weight", f"{theirs}gate.weight", (ffn.num_experts, hidden_dim))
    ]
    for name, shape in shapes.items():
        each = tuple(f"{theirs}experts.{i}.{name}.weight" for i in range(ffn.num_experts))
        out.append(ExpertMatrices(f"{ours}experts.{name}", each, shape))
    if ffn.shared is None:
        return out
    width = ffn.shared.ffn_dim
    for name in shapes:
        shape = (hidden_dim, width) if name == "down_proj" else (width, hidden_dim)
        out.append(
            Same(f"{ours}shared.{name}.weight", f"{theirs}shared_expert.{name}.weight", shape)
        )
    if ffn.shared.gate == "sigmoid":
        gate = f"{theirs}shared_expert_gate.weight"
        out.append(Same(f"{ours}shared_gate.weight", gate, (1, hidden_dim)))
    return out


def split_experts(tensors: Mapping[str, Tensor]) -> State:
    """Split tensors that hold the matrices of all experts into one tensor for each expert."""
    out: State = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(.+\.experts)\.(gate_up_proj|down_proj)", name)
        if match is None or tensor.dim() != 3:
            out[name] = tensor
            continue
        for i, matrix in enumerate(tensor):
            if match[2] == "down_proj":
                out[f"{match[1]}.{i}.down_proj.weight"] = matrix
                continue
            gate, up = matrix.chunk(2)
            out[f"{match[1]}.{i}.gate_proj.weight"] = gate
            out[f"{match[1]}.{i}.up_proj.weight"] = up
    return out
