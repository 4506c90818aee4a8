"""The pattern of a layer: the keys that queries see, and what is added to scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, no_type_check

from pydantic import Field

from gatelm.config import Config
from gatelm.nn.shapes import Bool, Int, Tensor

Direction = Literal["causal", "full"]
Keys = Literal["own", "cross"]


class BlockSparseConfig(Config):
    """Attention to some blocks of tokens: near blocks, every n-th block, the first blocks.

    A document is cut into blocks from its first token on; a query sees a key when one of the three
    rules joins their blocks (the causal order holds beside them). Local and strided blocks are
    arXiv 1904.10509's, with blocks in place of tokens; global ones arXiv 2004.05150's.
    """

    block_tokens: int = Field(ge=1)
    local_blocks: int = Field(default=1, ge=1)
    """Blocks seen up to the query's own, itself included; with direction full on both sides."""
    stride_blocks: int | None = Field(default=None, ge=1)
    """Blocks at a multiple of this distance are seen too."""
    global_blocks: int = Field(default=0, ge=0)
    """The first blocks of a document are seen by all its queries."""

    @no_type_check  # part of flex attention's kernel, where nothing but tensors may be touched
    def joins(
        self, query_position: Int[Tensor, "..."], key_position: Int[Tensor, "..."]
    ) -> Bool[Tensor, "..."]:
        """Whether the blocks of tokens at these positions in their document see each other."""
        theirs = key_position // self.block_tokens
        apart = query_position // self.block_tokens - theirs
        joined = apart.abs() < self.local_blocks
        if self.stride_blocks is not None:
            joined = joined | (apart % self.stride_blocks == 0)
        if self.global_blocks:
            joined = joined | (theirs < self.global_blocks)
        return joined


@dataclass(frozen=True)
class Pattern:
    """One layer's rule, the same for every text; `masks.AttentionMask` applies it to a forward.

    window_tokens: keys a query sees, itself included; None: all. first_tokens: keys at the start of
    the document that are seen past the window. blocks: see `BlockSparseConfig`. direction: causal,
    or full where keys after the query are seen too (a window then reaches to both sides).
    alibi_slopes: one a query head; a score falls by slope x distance (arXiv 2108.12409). keys: of
    the text itself, or of a second sequence, all of which is seen.
    """

    window_tokens: int | None = None
    first_tokens: int = 0
    blocks: BlockSparseConfig | None = None
    direction: Direction = "causal"
    alibi_slopes: tuple[float, ...] | None = None
    keys: Keys = "own"

    @property
    def needs_positions(self) -> bool:
        """Whether tokens' positions in their documents matter, beside their distance."""
        return self.blocks is not None or (self.window_tokens is not None and self.first_tokens > 0)

    def hides_nothing(self, num_keys: int) -> bool:
        """Whether order alone decides the mask of `num_keys` keys of one document."""
        reaches = self.window_tokens is None or self.window_tokens >= num_keys
        if self.blocks is None:
            return reaches
        blocks = self.blocks
        return (
            reaches
            and blocks.block_tokens * max(blocks.local_blocks, blocks.global_blocks) >= num_keys
        )

    def within(self, num_keys: int) -> Pattern:
        """Return the simplest pattern with the same mask of `num_keys` keys."""
        if self.hides_nothing(num_keys):
            return Pattern(direction=self.direction, alibi_slopes=self.alibi_slopes)
        return self

    @no_type_check  # like `joins`
    def sees(
        self,
        query: Int[Tensor, "..."],
        key: Int[Tensor, "..."],
        query_position: Int[Tensor, "..."] | None = None,
        key_position: Int[Tensor, "..."] | None = None,
    ) -> Bool[Tensor, "..."]:
        """Whether queries see keys of their document, by index in the row.

        The positions are 0-based from the document's start, needed where `needs_positions`.
        """
        causal = self.direction == "causal"
        seen = key <= query if causal else (key == key) & (query == query)
        if self.window_tokens is not None:
            near = key > query - self.window_tokens
            if not causal:
                near = near & (key < query + self.window_tokens)
            if self.first_tokens:
                assert key_position is not None
                near = near | (key_position < self.first_tokens)
            seen = seen & near
        if self.blocks is not None:
            assert query_position is not None
            assert key_position is not None
            seen = seen & self.blocks.joins(query_position, key_position)
        return seen
