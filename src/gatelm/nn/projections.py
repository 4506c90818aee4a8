"""Query, key and value projections."""

from __future__ import annotations

from torch import nn

from gatelm.nn.shapes import Float, Tensor


class QKVProjection(nn.Module):
    """Grouped-query projections: N query heads, K key/value heads, separate matrices."""

    def __init__(
        self, hidden_dim: int, num_heads: int, num_kv_heads: int, head_dim: int, bias: bool
    ):
        super().__init__()
        self.head_dim = head_dim
        self.q = nn.Linear(hidden_dim, num_heads * head_dim, bias=bias)
        self.k = nn.Linear(hidden_dim, num_kv_heads * head_dim, bias=bias)
        self.v = nn.Linear(hidden_dim, num_kv_heads * head_dim, bias=bias)

    def forward(
        self, x: Float[Tensor, "B T D"]
    ) -> tuple[Float[Tensor, "B T N H"], Float[Tensor, "B T K H"], Float[Tensor, "B T K H"]]:
        """q (B,T,N,H), k and v (B,T,K,H) of x (B,T,D)."""
        heads = (-1, self.head_dim)
        return (
            self.q(x).unflatten(-1, heads),
            self.k(x).unflatten(-1, heads),
            self.v(x).unflatten(-1, heads),
        )
