"""Checks on numbers of heads that mixers share."""

from __future__ import annotations

from gatelm.config import ConfigError


def check_width(num_heads: int, head_dim: int | None, hidden_dim: int, where: str) -> None:
    """Raises ConfigError, naming `where`, when heads of no width of their own leave a remainder."""
    if head_dim is None and hidden_dim % num_heads:
        raise ConfigError(
            f"{where}.num_heads: hidden_dim {hidden_dim} is not a multiple of {num_heads} heads; "
            "change one of them, or set mixer.head_dim"
        )


def check_kv_heads(num_heads: int, kv_heads: int, where: str) -> None:
    """Raises ConfigError, naming `where`, when query heads cannot be divided among key heads."""
    if num_heads % kv_heads:
        raise ConfigError(
            f"{where}.num_kv_heads: {num_heads} query heads cannot be divided among {kv_heads} "
            f"key/value heads; use a divisor of {num_heads}"
        )
