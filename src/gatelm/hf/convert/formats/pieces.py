"""Pieces of the map between the tensors of this package and those of a format.

A piece moves rows from tensors to tensors; no value changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from gatelm.config import ConfigError
from gatelm.hf.convert.layouts import PackedShape, pack, unpack
from gatelm.nn.shapes import Int, Tensor

State = dict[str, Tensor]
Shape = tuple[int, ...]


class Piece(Protocol):
    """Some tensors of this package ("ours"), and the tensors of a format that hold the same rows
    ("theirs")."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of our tensors."""
        ...

    @property
    def shapes(self) -> dict[str, Shape]:
        """Shapes of their tensors by name."""
        ...

    def read(self, tensors: Mapping[str, Tensor], where: str) -> State:
        """Make our tensors of theirs, which have the expected shapes.

        Raises:
            ConfigError: for values that cannot be expressed here.
        """
        ...

    def write(self, state: Mapping[str, Tensor]) -> State:
        """Make their tensors of ours."""
        ...


@dataclass(frozen=True)
class Same:
    """A tensor that is the same in both, under two names."""

    ours: str
    theirs: str
    shape: Shape

    @property
    def names(self) -> tuple[str, ...]:
        """See `Piece.names`."""
        return (self.ours,)

    @property
    def shapes(self) -> dict[str, Shape]:
        """See `Piece.shapes`."""
        return {self.theirs: self.shape}

    def read(self, tensors: Mapping[str, Tensor], where: str) -> State:
        """See `Piece.read`."""
        return {self.ours: tensors[self.theirs]}

    def write(self, state: Mapping[str, Tensor]) -> State:
        """See `Piece.write`."""
        return {self.theirs: state[self.ours]}


@dataclass(frozen=True)
class Packed:
    """One matrix of theirs that holds our query and gate projections."""

    query: str
    gate: str
    theirs: str
    layout: str
    packed: PackedShape
    shape: Shape

    @property
    def names(self) -> tuple[str, ...]:
        """See `Piece.names`."""
        return (self.query, self.gate)

    @property
    def shapes(self) -> dict[str, Shape]:
        """See `Piece.shapes`."""
        return {self.theirs: self.shape}

    def read(self, tensors: Mapping[str, Tensor], where: str) -> State:
        """See `Piece.read`."""
        query, gate = unpack(self.layout, self.packed, tensors[self.theirs])
        return {self.query: query, self.gate: gate}

    def write(self, state: Mapping[str, Tensor]) -> State:
        """See `Piece.write`."""
        query, gate = state[self.query], state[self.gate]
        return {self.theirs: pack(self.layout, self.packed, query, gate)}


@dataclass(frozen=True, eq=False)
class StackedRows:
    """One tensor of theirs that holds the rows of several of ours.

    order: their rows as indices into ours, one after the other. shape: theirs, which may have axes
    of size 1 that ours lack.
    """

    ours: tuple[str, ...]
    counts: tuple[int, ...]
    order: Int[Tensor, "R"]
    theirs: str
    shape: Shape

    @property
    def names(self) -> tuple[str, ...]:
        """See `Piece.names`."""
        return self.ours

    @property
    def shapes(self) -> dict[str, Shape]:
        """See `Piece.shapes`."""
        return {self.theirs: self.shape}

    def read(self, tensors: Mapping[str, Tensor], where: str) -> State:
        """See `Piece.read`."""
        tensor = tensors[self.theirs]
        rows = torch.empty_like(tensor)
        rows[self.order] = tensor
        rows = rows.view(len(rows), -1)
        parts = zip(self.ours, rows.split(self.counts), strict=True)
        return {name: part.clone() for name, part in parts}

    def write(self, state: Mapping[str, Tensor]) -> State:
        """See `Piece.write`."""
        rows = torch.cat([state[name] for name in self.ours])[self.order]
        return {self.theirs: rows.reshape(self.shape)}


@dataclass(frozen=True)
class ExpertMatrices:
    """A matrix of theirs for each expert; ours holds those of all experts."""

    ours: str
    theirs: tuple[str, ...]
    shape: Shape

    @property
    def names(self) -> tuple[str, ...]:
        """See `Piece.names`."""
        return (self.ours,)

    @property
    def shapes(self) -> dict[str, Shape]:
        """See `Piece.shapes`."""
        return dict.fromkeys(self.theirs, self.shape)

    def read(self, tensors: Mapping[str, Tensor], where: str) -> State:
        """See `Piece.read`."""
        return {self.ours: torch.stack([tensors[name] for name in self.theirs])}

    def write(self, state: Mapping[str, Tensor]) -> State:
        """See `Piece.write`."""
        return dict(zip(self.theirs, state[self.ours].unbind(), strict=True))


@dataclass(frozen=True)
class Inert:
    """A tensor of theirs that does not change what the model computes; it is written as zeros.

    silent: why the tensor may hold any values when it is read; None: it must hold zeros.
    """

    theirs: str
    shape: Shape
    silent: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """See `Piece.names`."""
        return ()

    @property
    def shapes(self) -> dict[str, Shape]:
        """See `Piece.shapes`."""
        return {self.theirs: self.shape}

    def read(self, tensors: Mapping[str, Tensor], where: str) -> State:
        """See `Piece.read`."""
        if self.silent is None and bool(tensors[self.theirs].any()):
            raise ConfigError(
                f"{where}: {self.theirs}: is not zero, so it does something that cannot be "
                "expressed here"
            )
        return {}

    def write(self, state: Mapping[str, Tensor]) -> State:
        """See `Piece.write`."""
        like = state["embedding.weight"]
        return {self.theirs: torch.zeros(self.shape, dtype=like.dtype)}
