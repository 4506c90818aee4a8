"""How other formats pack a query projection and its gate into one matrix.

Two layouts are in circulation that have *the same shape*, so the wrong one loads without an error:

| layout | rows of q_proj | who |
|---|---|---|
| `per_query_head` | for each query head: its query rows, then its gate rows | Qwen3-Next, Qwen3.5 |
| `per_kv_group` | for each key/value head: the query rows of all its query heads, then their gate \
rows | the release of arXiv 2505.06708, Megatron-LM |
| `separate` | two matrices | this package, AFMoE, Step, LFM3 |

They coincide only when every query head has a key of its own. Everything here moves rows; no value
is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gatelm.config import ConfigError
from gatelm.nn.shapes import Float, Int, Tensor


@dataclass(frozen=True)
class PackedShape:
    """Shape of a packed matrix: query heads in groups, and gate_width gate rows per query head.

    gate_width is head_dim for a gate per channel and 1 for a gate per head.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    gate_width: int

    @property
    def query_rows(self) -> int:
        """Number of query rows."""
        return self.num_heads * self.head_dim

    @property
    def gate_rows(self) -> int:
        """Number of gate rows."""
        return self.num_heads * self.gate_width


def units(layout: str, shape: PackedShape) -> int:
    """Return the number of [queries | gates] blocks into which a layout divides the matrix."""
    blocks: Mapping[str, int] = {
        "per_query_head": shape.num_heads,
        "per_kv_group": shape.num_kv_heads,
    }
    if layout not in blocks:
        raise ConfigError(f"layout {layout!r}: known packed layouts are {', '.join(blocks)}")
    return blocks[layout]


PACKED_LAYOUTS = ("per_query_head", "per_kv_group")


def row_order(layout: str, shape: PackedShape) -> Int[Tensor, "R"]:
    """Return the packed matrix's rows as indices into [all query rows; all gate rows]."""
    blocks = units(layout, shape)
    queries = torch.arange(shape.query_rows).view(blocks, -1)
    gates = shape.query_rows + torch.arange(shape.gate_rows).view(blocks, -1)
    return torch.cat((queries, gates), dim=1).flatten()


def pack(
    layout: str, shape: PackedShape, query: Float[Tensor, "Q *C"], gate: Float[Tensor, "G *C"]
) -> Float[Tensor, "R *C"]:
    """Pack two matrices into one; rows of `query` and `gate` are in the order of the heads."""
    assert query.shape[0] == shape.query_rows, (tuple(query.shape), shape)
    assert gate.shape[0] == shape.gate_rows, (tuple(gate.shape), shape)
    return torch.cat((query, gate))[row_order(layout, shape)]


def unpack(
    layout: str, shape: PackedShape, packed: Float[Tensor, "R *C"]
) -> tuple[Float[Tensor, "Q *C"], Float[Tensor, "G *C"]]:
    """Split a packed matrix into the query and gate matrices, rows in the order of the heads."""
    assert packed.shape[0] == shape.query_rows + shape.gate_rows, (tuple(packed.shape), shape)
    order = row_order(layout, shape)
    both = torch.empty_like(packed)
    both[order] = packed
    return both[: shape.query_rows].clone(), both[shape.query_rows :].clone()
