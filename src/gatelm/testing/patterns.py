"""Naive twin of attention patterns: the visible keys, and what is added to scores."""

from __future__ import annotations

from gatelm.nn.attention.pattern import Pattern


def visible(i: int, j: int, documents: list[int], pattern: Pattern) -> bool:
    """Whether query i may attend to key j of a row."""
    if documents[i] != documents[j] or (pattern.direction == "causal" and j > i):
        return False
    if pattern.window_tokens is not None:
        near = abs(i - j) < pattern.window_tokens
        if not near and position(j, documents) >= pattern.first_tokens:
            return False
    blocks = pattern.blocks
    if blocks is None:
        return True
    mine, theirs = (position(t, documents) // blocks.block_tokens for t in (i, j))
    local = abs(mine - theirs) <= blocks.local_blocks - 1
    strided = blocks.stride_blocks is not None and (mine - theirs) % blocks.stride_blocks == 0
    return local or strided or theirs < blocks.global_blocks


def position(i: int, documents: list[int]) -> int:
    """Count the tokens of its document before token i."""
    begin = i
    while begin > 0 and documents[begin - 1] == documents[i]:
        begin -= 1
    return i - begin


def added(i: int, j: int, head: int, pattern: Pattern) -> float:
    """Return what is added to the scaled score."""
    return 0.0 if pattern.alibi_slopes is None else -pattern.alibi_slopes[head] * abs(i - j)
