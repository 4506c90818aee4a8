"""The cost of a module, as its config knows it before anything is built."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ParamCount:
    """Parameters of a module by what they cost."""

    matrix: int = 0
    """Entries of matrices: two FLOPs a token each."""
    other: int = 0
    """Biases, decays, convolution kernels and other parameters whose FLOPs are not counted."""
    norm: int = 0
    """Weights of norms inside the module."""
    idle: int = 0
    """Entries of `matrix` that a token does not use: the experts it is not sent to."""

    @property
    def parameters(self) -> int:
        """All parameters but those of norms, which are counted apart."""
        return self.matrix + self.other

    def __add__(self, more: ParamCount) -> ParamCount:
        return ParamCount(
            self.matrix + more.matrix,
            self.other + more.other,
            self.norm + more.norm,
            self.idle + more.idle,
        )
